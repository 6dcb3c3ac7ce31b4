"""The page of the outbox: pending and published rows, with their state and last error.

Read-only; `base.py` holds what both pages share. The actions are in `actions.py`, the states and
the order of their lists in `states.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.html import format_html

from django_integration.admin import actions, states
from django_integration.admin.base import StoredMessageAdmin
from django_integration.admin.filters import STATE, StateFilter, TaskNameFilter
from django_integration.admin.formatting import failure, moment
from django_integration.keys import readable_key
from django_integration.models import CeleryOutbox

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest
    from django.template.response import TemplateResponse


FOR_SCHEDULED = ("send_now", "cancel")
FOR_OTHERS = ("retry_now", "discard")


@admin.register(CeleryOutbox)
class OutboxAdmin(StoredMessageAdmin):
    """Outbox messages, with *retry now*, *discard*, and for scheduled ones *send now*, *cancel*."""

    actions = (*FOR_OTHERS, *FOR_SCHEDULED)
    list_display = ("task", "state", "created", "error")
    list_filter = (StateFilter, TaskNameFilter)
    listed = (*StoredMessageAdmin.listed, "due_at", "claimed_by", "last_error", "published_at")
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "task_name",
                    "task_id",
                    "state",
                    "created_at",
                    "wanted_at",
                    "key",
                    "due_at",
                    "updated_at",
                    "published_at",
                )
            },
        ),
        ("Delivery", {"fields": ("attempts", "last_error", "claimed_by", "claimed_until")}),
        ("Arguments", {"fields": ("shown_args", "shown_kwargs", "payload_size")}),
        (
            "Message and context",
            {"fields": ("shown_options", "schema_version", "sentry_trace_id", "shown_context")},
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = states.with_state(super().get_queryset(request))
        return rows

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """In a list of one state, those that can do something there."""
        found, state = super().get_actions(request), request.GET.get(STATE)
        if state is None:
            return found
        wanted = FOR_SCHEDULED if state == "scheduled" else FOR_OTHERS
        return {name: action for name, action in found.items() if name in wanted}

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        return states.chosen(request.GET.get(STATE)).ordering

    @admin.action(description="Retry now", permissions=["resend"])
    def retry_now(self, request: HttpRequest, queryset: QuerySet[Any]) -> TemplateResponse | None:
        return actions.carry_out(self, request, queryset, actions.RETRY)

    @admin.action(description="Discard", permissions=["discard"])
    def discard(self, request: HttpRequest, queryset: QuerySet[Any]) -> TemplateResponse | None:
        return actions.carry_out(self, request, queryset, actions.DISCARD)

    @admin.action(description="Send now", permissions=["resend"])
    def send_now(self, request: HttpRequest, queryset: QuerySet[Any]) -> TemplateResponse | None:
        return actions.carry_out(self, request, queryset, actions.SEND_NOW)

    @admin.action(description="Cancel", permissions=["discard"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Any]) -> TemplateResponse | None:
        return actions.carry_out(self, request, queryset, actions.CANCEL)

    @admin.display(description="State")
    def state(self, row: Any) -> str:
        return format_html(
            '<span class="outbox-state outbox-{}">{}</span> <span class="outbox-quiet">{}</span>',
            row.state,
            states.STATES[row.state].label,
            _detail(row),
        )

    @admin.display(description="Key", empty_value="-")
    def key(self, row: CeleryOutbox) -> str | None:
        """While it waits, calls with the same key are dropped or take its place."""
        return row.outbox_key and readable_key(row.outbox_key)

    @admin.display(description="Last error")
    def error(self, row: CeleryOutbox) -> str:
        return failure(row.retries, row.last_error)


def _detail(row: Any) -> str:
    """The detail beside a state: which relay holds the row, or when it was or will be due."""
    if row.state == "in_flight":
        return str(row.claimed_by)
    if row.state == "published":
        return moment(row.published_at)
    return format_html("due {}", moment(row.due_at))
