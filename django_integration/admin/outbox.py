"""The pages of the outbox: pending and published rows, with their state and last error.

Read-only; `base.py` holds what both tables share. What can be done is in `operations.py`, the
states and the order of their lists in `states.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.html import format_html

from django_integration.admin import states
from django_integration.admin.actions import action_for
from django_integration.admin.base import StoredMessageAdmin
from django_integration.admin.fields import ARGUMENTS, CONTEXT, WHERE_IT_GOES, exact_time
from django_integration.admin.filters import STATE, StateFilter, TaskNameFilter
from django_integration.admin.formatting import MISSING, failure, moment, preformatted
from django_integration.admin.operations import CANCEL, DISCARD, RETRY, SEND_NOW
from django_integration.admin.summary import summary_for
from django_integration.keys import readable_key
from django_integration.models import CeleryOutbox

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest

    from django_integration.admin.operations import Operation
    from django_integration.admin.summary import Summary

FOR_SCHEDULED = (SEND_NOW, CANCEL)
FOR_OTHERS = (RETRY, DISCARD)


@admin.register(CeleryOutbox)
class OutboxAdmin(StoredMessageAdmin):
    """Outbox messages, with *retry now*, *discard*, and for scheduled ones *send now*, *cancel*."""

    operations = (*FOR_OTHERS, *FOR_SCHEDULED)
    actions = tuple(map(action_for, operations))
    list_display = ("task", "state", "created", "error")
    list_filter = (StateFilter, TaskNameFilter)
    listed = (*StoredMessageAdmin.listed, "due_at", "claimed_by", "last_error", "published_at")
    filtered = states.FILTERED
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "task_name",
                    "task_id",
                    "state",
                    "created_exactly",
                    "wanted_at",
                    "key",
                    "due_exactly",
                    "updated_exactly",
                    "published_exactly",
                )
            },
        ),
        (
            "Delivery",
            {"fields": (*WHERE_IT_GOES, "attempts", "shown_error", "claimed_by", "lease_ends")},
        ),
        ARGUMENTS,
        CONTEXT,
    )

    due_exactly = exact_time("due_at", "Due at")
    updated_exactly = exact_time("updated_at", "Last attempt at")
    published_exactly = exact_time("published_at", "Published at")
    lease_ends = exact_time("claimed_until", "Claimed until")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = states.with_state(super().get_queryset(request))
        return rows

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """In a list of one state, those that can do something there."""
        found, state = super().get_actions(request), request.GET.get(STATE)
        if state is None:
            return found
        wanted = FOR_SCHEDULED if state == "scheduled" else FOR_OTHERS
        return {each.action: found[each.action] for each in wanted if each.action in found}

    def summary(self, request: HttpRequest) -> Summary | None:
        return summary_for(request, self.admin_site)

    def possible(self, request: HttpRequest, object_id: str) -> list[Operation]:
        """*Cancel* is what *discard* is for others."""
        found = super().possible(request, object_id)
        return [each for each in found if each is not DISCARD or CANCEL not in found]

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        return states.chosen(request.GET.get(STATE)).ordering

    @admin.display(description="State")
    def state(self, row: Any) -> str:
        return format_html(
            '<span class="outbox-state outbox-{}">{}</span> <span class="outbox-quiet">{}</span>',
            row.state,
            states.STATES[row.state].label,
            _detail(row),
        )

    @admin.display(description="Key")
    def key(self, row: CeleryOutbox) -> str:
        """While it waits, calls with the same key are dropped or take its place."""
        return readable_key(row.outbox_key) if row.outbox_key else MISSING

    @admin.display(description="Last error")
    def shown_error(self, row: CeleryOutbox) -> str:
        return preformatted(row.last_error or "")

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
