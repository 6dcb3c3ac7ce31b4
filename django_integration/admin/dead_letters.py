"""The pages of the dead letters: messages that could not be published, tasks that failed, and why.

Read-only; `base.py` holds what both tables share. *Replay* and *discard* are in `operations.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin

from celery_outbox_steps.store import MESSAGE
from django_integration.admin import configuration, states
from django_integration.admin.actions import action_for
from django_integration.admin.base import StoredMessageAdmin
from django_integration.admin.fields import contents, exact_time, where_it_goes
from django_integration.admin.filters import (
    DEAD_FILTERED,
    DESTINATION,
    DeadDestinationFilter,
    DeadTaskNameFilter,
    KindFilter,
)
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
    list_filter = (DeadDestinationFilter, KindFilter, DeadTaskNameFilter)
    listed = (
        *StoredMessageAdmin.listed,
        "dead_at",
        "failure_reason",
        "kind",
        "destination",
        "order_key",
        "schema_version",
    )
    filtered = DEAD_FILTERED
    died_exactly = exact_time("dead_at", "Died at")

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        """With the destination, if there are any."""
        if not (configuration.destinations() or request.GET.get(DESTINATION)):
            return self.list_display
        task, *others = self.list_display
        return (task, "goes_to", *others)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:  # noqa: ARG002  Django's
        key = ("shown_order_key",) if obj is not None and obj.order_key else ()
        about = ("shown_kind", "task_name", "task_id", "died_exactly", "created_exactly")
        failed = ("wanted_at", "attempts", "shown_reason", "shown_traceback")
        return (
            (None, {"fields": (*about, *key, *failed)}),
            ("Delivery", {"fields": where_it_goes(obj)}),
            *contents(obj),
        )

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
