"""The pages of messages for destinations: events, and tasks of other Celery installations.

As the outbox's pages (`waiting.py`), and for each message its destination, its key and what it
waits for (`order.py`). Above the list is a table of the destinations (`destinations.py`). A project
without destinations does not see these pages in the index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.html import format_html

from django_integration.admin import configuration, order, states
from django_integration.admin.actions import action_for
from django_integration.admin.destinations import destinations_summary_for
from django_integration.admin.fields import contents, where_it_goes
from django_integration.admin.filters import (
    DESTINATION,
    DeliveryStateFilter,
    DestinationFilter,
    TaskNameFilter,
)
from django_integration.admin.links import Links
from django_integration.admin.operations import (
    CANCEL_DELIVERY,
    DISCARD_DELIVERY,
    RETRY_DELIVERY,
    SEND_NOW_DELIVERY,
)
from django_integration.admin.waiting import LEASE, WaitingMessageAdmin
from django_integration.models import CeleryOutboxDelivery
from django_integration.store.postgresql import FOR_LIST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.http import HttpRequest

    from django_integration.admin.destinations import DestinationsSummary
    from django_integration.models import StoredMessage


@admin.register(CeleryOutboxDelivery)
class DeliveryAdmin(WaitingMessageAdmin):
    """Messages for destinations, with the operations of the outbox's page."""

    operations = (RETRY_DELIVERY, DISCARD_DELIVERY, SEND_NOW_DELIVERY, CANCEL_DELIVERY)
    actions = tuple(map(action_for, operations))
    list_display = ("task", "goes_to", "state", "created", "error")
    list_filter = (DestinationFilter, DeliveryStateFilter, TaskNameFilter)
    listed = (*WaitingMessageAdmin.listed, "destination", "order_key", "schema_version")
    # The planner expects few rows of a destination as long as it has no statistics, and would read
    # and sort them all.
    planner = f"{FOR_LIST}; SET LOCAL enable_bitmapscan = off"
    search_help_text = "The id of an event or a task, or a part of its name."
    filtered = states.columns_of(CeleryOutboxDelivery)

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """What puts the page into the index."""
        return super().get_model_perms(request) if configuration.destinations() else {}

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:  # noqa: ARG002  Django's
        # A held-back one is due at no time.
        due = "waits_for" if getattr(obj, "state", "") == "held_back" else "due_exactly"
        about = (
            "shown_name",
            "shown_id",
            "state",
            "shown_order_key",
            "created_exactly",
            "wanted_at",
            due,
            "updated_exactly",
            "published_exactly",
        )
        delivery = (*where_it_goes(obj), "attempts", "shown_error", *LEASE)
        return (None, {"fields": about}), ("Delivery", {"fields": delivery}), *contents(obj)

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Along the index in a list of one destination; all together, the newest first."""
        if not request.GET.get(DESTINATION):
            return states.NEWEST_FIRST
        return DeliveryStateFilter.state_of(request).ordering

    def look_up(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        order.find_what_they_wait_for(rows, Links(request, self.admin_site))

    def summary(self, request: HttpRequest) -> DestinationsSummary | None:
        return destinations_summary_for(request, self.admin_site)

    def detail(self, row: Any) -> str:
        if row.state != "held_back":
            return super().detail(row)
        return format_html("waits for {}", order.link_to(row.waits_for))

    @admin.display(description="Event or task")
    def task(self, row: StoredMessage) -> str:
        return super().task(row)

    @admin.display(description="Name")
    def shown_name(self, row: CeleryOutboxDelivery) -> str:
        return row.task_name

    @admin.display(description="Id")
    def shown_id(self, row: CeleryOutboxDelivery) -> str:
        return row.task_id

    @admin.display(description="Waits for")
    def waits_for(self, row: Any) -> str:
        return order.description_of(row.waits_for)
