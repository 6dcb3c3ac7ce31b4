"""The pages of the outbox: pending and published rows, with their state and last error.

Read-only; `waiting.py` and `base.py` hold what the tables share. What can be done is in
`operations.py`, the states and the order of their lists in `states.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin

from django_integration.admin import states
from django_integration.admin.actions import action_for
from django_integration.admin.fields import ARGUMENTS, CONTEXT, WHERE_IT_GOES
from django_integration.admin.filters import StateFilter, TaskNameFilter
from django_integration.admin.formatting import MISSING
from django_integration.admin.operations import CANCEL, DISCARD, RETRY, SEND_NOW
from django_integration.admin.summary import summary_for
from django_integration.admin.waiting import LEASE, WaitingMessageAdmin
from django_integration.keys import readable_key
from django_integration.models import CeleryOutbox

if TYPE_CHECKING:
    from django.http import HttpRequest

    from django_integration.admin.summary import Summary


@admin.register(CeleryOutbox)
class OutboxAdmin(WaitingMessageAdmin):
    """Outbox messages, with *retry now*, *discard*, and for scheduled ones *send now*, *cancel*."""

    operations = (RETRY, DISCARD, SEND_NOW, CANCEL)
    actions = tuple(map(action_for, operations))
    list_display = ("task", "state", "created", "error")
    list_filter = (StateFilter, TaskNameFilter)
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
        ("Delivery", {"fields": (*WHERE_IT_GOES, "attempts", "shown_error", *LEASE)}),
        ARGUMENTS,
        CONTEXT,
    )

    def summary(self, request: HttpRequest) -> Summary | None:
        return summary_for(request, self.admin_site)

    @admin.display(description="Key")
    def key(self, row: CeleryOutbox) -> str:
        """While it waits, calls with the same key are dropped or take its place."""
        return readable_key(row.outbox_key) if row.outbox_key else MISSING
