"""What the pages of waiting messages share: those for the app's own broker, and for destinations.

States, the error and the lease of a row, and the operations on it. `states.py` has the states and
the order of their lists, `operations.py` what can be done; `outbox.py` and `deliveries.py` are the
pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.html import format_html

from django_integration.admin import states
from django_integration.admin.base import StoredMessageAdmin
from django_integration.admin.fields import exact_time
from django_integration.admin.filters import STATE
from django_integration.admin.formatting import failure, moment, preformatted
from django_integration.admin.operations import CANCEL, SEND_NOW

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest

    from django_integration.admin.operations import Operation
    from django_integration.models import WaitingMessage

LEASE = ("claimed_by", "lease_ends")
FOR_SCHEDULED = {SEND_NOW.action, CANCEL.action}


class WaitingMessageAdmin(StoredMessageAdmin):
    """A list of messages by state."""

    listed = (
        *StoredMessageAdmin.listed,
        "due_at",
        "claimed_by",
        "last_error",
        "published_at",
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
        for_scheduled = state == "scheduled"
        return {
            name: each for name, each in found.items() if (name in FOR_SCHEDULED) == for_scheduled
        }

    def possible(self, request: HttpRequest, object_id: str) -> list[Operation]:
        """*Cancel* is what *discard* is for others."""
        found = super().possible(request, object_id)
        can_cancel = any(each.action == CANCEL.action for each in found)
        return [each for each in found if each.action != "discard" or not can_cancel]

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        return states.chosen(request.GET.get(STATE)).ordering

    @admin.display(description="State")
    def state(self, row: Any) -> str:
        return format_html(
            '<span class="outbox-state outbox-{}">{}</span> <span class="outbox-quiet">{}</span>',
            row.state,
            states.STATES[row.state].label,
            self.detail(row),
        )

    def detail(self, row: Any) -> str:
        """Beside the state: which relay holds the row, or when it was or will be due."""
        if row.state == "in_flight":
            return str(row.claimed_by)
        if row.state == "published":
            return moment(row.published_at)
        return format_html("due {}", moment(row.due_at))

    @admin.display(description="Last error")
    def shown_error(self, row: WaitingMessage) -> str:
        return preformatted(row.last_error or "")

    @admin.display(description="Last error")
    def error(self, row: WaitingMessage) -> str:
        return failure(row.retries, row.last_error)
