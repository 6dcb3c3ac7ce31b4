"""The pages of the dead letters: messages that could not be published, tasks that failed, and why.

Read-only; `base.py` holds what both tables share. *Replay* and *discard* are in `operations.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin

from celery_outbox_steps.store import MESSAGE
from django_integration.admin import states
from django_integration.admin.actions import action_for
from django_integration.admin.base import StoredMessageAdmin
from django_integration.admin.fields import ARGUMENTS, CONTEXT, WHERE_IT_GOES, exact_time
from django_integration.admin.filters import DEAD_FILTERED, DeadTaskNameFilter, KindFilter
from django_integration.admin.formatting import failure, moment, preformatted
from django_integration.admin.operations import DISCARD_DEAD, REPLAY
from django_integration.admin.summary import dead_summary_for
from django_integration.models import CeleryOutboxDeadLetter

if TYPE_CHECKING:
    from django.http import HttpRequest

    from django_integration.admin.summary import Summary


@admin.register(CeleryOutboxDeadLetter)
class DeadLetterAdmin(StoredMessageAdmin):
    """Dead letters, with *replay* and *discard*."""

    operations = (REPLAY, DISCARD_DEAD)
    actions = tuple(map(action_for, operations))
    # Dead letters are only appended, so this is also the order of their deaths.
    ordering = states.NEWEST_FIRST
    list_display = ("task", "shown_kind", "died", "created", "reason")
    list_filter = (KindFilter, DeadTaskNameFilter)
    listed = (*StoredMessageAdmin.listed, "dead_at", "failure_reason", "kind")
    filtered = DEAD_FILTERED
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "shown_kind",
                    "task_name",
                    "task_id",
                    "died_exactly",
                    "created_exactly",
                    "wanted_at",
                    "attempts",
                    "shown_reason",
                    "shown_traceback",
                )
            },
        ),
        ("Delivery", {"fields": WHERE_IT_GOES}),
        ARGUMENTS,
        CONTEXT,
    )

    died_exactly = exact_time("dead_at", "Died at")

    def summary(self, request: HttpRequest) -> Summary | None:
        return dead_summary_for(request, self.admin_site)

    @admin.display(description="Kind")
    def shown_kind(self, row: CeleryOutboxDeadLetter) -> str:
        return row.kind or MESSAGE

    @admin.display(description="Failure reason")
    def shown_reason(self, row: CeleryOutboxDeadLetter) -> str:
        return preformatted(row.failure_reason)

    @admin.display(description="Traceback")
    def shown_traceback(self, row: CeleryOutboxDeadLetter) -> str:
        return preformatted(row.traceback or "")

    @admin.display(description="Died")
    def died(self, row: CeleryOutboxDeadLetter) -> str:
        return moment(row.dead_at)

    @admin.display(description="Failure reason")
    def reason(self, row: CeleryOutboxDeadLetter) -> str:
        return failure(row.retries, row.failure_reason)
