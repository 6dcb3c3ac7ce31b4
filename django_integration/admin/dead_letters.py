"""The page of the dead letters: messages that could not be published, tasks that failed, and why.

Read-only; `base.py` holds what both pages share. *Replay* and *discard* are in `actions.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin

from celery_outbox_steps.store import MESSAGE
from django_integration.admin import actions, states
from django_integration.admin.base import StoredMessageAdmin
from django_integration.admin.filters import DeadTaskNameFilter, KindFilter
from django_integration.admin.formatting import failure, moment, preformatted
from django_integration.models import CeleryOutboxDeadLetter

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest
    from django.template.response import TemplateResponse


@admin.register(CeleryOutboxDeadLetter)
class DeadLetterAdmin(StoredMessageAdmin):
    """Dead letters, with *replay* and *discard*."""

    actions = ("replay", "discard")
    # Dead letters are only appended, so this is also the order of their deaths.
    ordering = states.NEWEST_FIRST
    list_display = ("task", "shown_kind", "died", "created", "reason")
    list_filter = (KindFilter, DeadTaskNameFilter)
    listed = (*StoredMessageAdmin.listed, "dead_at", "failure_reason", "kind")
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "shown_kind",
                    "task_name",
                    "task_id",
                    "dead_at",
                    "created_at",
                    "wanted_at",
                    "attempts",
                    "failure_reason",
                    "shown_traceback",
                )
            },
        ),
        ("Arguments", {"fields": ("shown_args", "shown_kwargs", "payload_size")}),
        (
            "Message and context",
            {"fields": ("shown_options", "schema_version", "sentry_trace_id", "shown_context")},
        ),
    )

    @admin.action(description="Replay", permissions=["resend"])
    def replay(self, request: HttpRequest, queryset: QuerySet[Any]) -> TemplateResponse | None:
        return actions.carry_out(self, request, queryset, actions.REPLAY)

    @admin.action(description="Discard", permissions=["discard"])
    def discard(self, request: HttpRequest, queryset: QuerySet[Any]) -> TemplateResponse | None:
        return actions.carry_out(self, request, queryset, actions.DISCARD_DEAD)

    @admin.display(description="Kind")
    def shown_kind(self, row: CeleryOutboxDeadLetter) -> str:
        return row.kind or MESSAGE

    @admin.display(description="Traceback")
    def shown_traceback(self, row: CeleryOutboxDeadLetter) -> str:
        return preformatted(row.traceback or "")

    @admin.display(description="Died")
    def died(self, row: CeleryOutboxDeadLetter) -> str:
        return moment(row.dead_at)

    @admin.display(description="Failure reason")
    def reason(self, row: CeleryOutboxDeadLetter) -> str:
        return failure(row.retries, row.failure_reason)
