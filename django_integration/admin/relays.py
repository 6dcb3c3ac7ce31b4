"""The page of the relays: which workers relay, which stand by, and which are gone.

Read-only: a relay writes its own row. Whether it is alive, and how long ago it was seen, is what
`Store.fleet()` says, by the database's clock. `base.py` holds what the pages share.
"""

# ruff: noqa: ARG002  the signatures are Django's
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db import connections
from django.db.models import Case, F, When
from django.utils.html import format_html, format_html_join

from celery_outbox_steps.fleet import STOPPED
from celery_outbox_steps.health import age, first_line
from django_integration.admin import configuration
from django_integration.admin.base import OneDatabase, ReadOnlyAdmin
from django_integration.admin.fields import exact_time
from django_integration.admin.formatting import MISSING, one_line, preformatted, visible
from django_integration.admin.summary import fleet_summary_for
from django_integration.models import CeleryOutboxRelay, DatabaseNow
from django_integration.store import DjangoStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.http import HttpRequest, HttpResponse

    from celery_outbox_steps.fleet import SeenMember


class SeenChangeList(OneDatabase):
    """Each row with the member of the fleet that it is, as `row.seen`."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        by_id = _members(self.root_queryset.db)
        # A row that was deleted between the two queries is left out.
        self.result_list = [row for row in self.result_list if row.pk in by_id]
        for row in self.result_list:
            row.seen = by_id[row.pk]


@admin.register(CeleryOutboxRelay)
class RelayAdmin(ReadOnlyAdmin):
    """Relays: those with a slot first, those that are gone last."""

    actions = None
    sortable_by = ()
    list_display = ("name", "state_now", "slot", "speed", "error", "last_seen", "version")
    fields = (
        "worker",
        "relay_id",
        "version",
        "state",
        "slot",
        "started",
        "seen",
        "expires",
        "rate",
        "shown_counters",
        "shown_error",
    )

    started = exact_time("started_at", "Started at")
    seen = exact_time("seen_at", "Seen at")
    expires = exact_time("expires_at", "Expires at")

    def get_ordering(self, request: HttpRequest) -> tuple[Any, ...]:
        gone_last = Case(When(expires_at__gt=DatabaseNow(), then=0), default=1)
        return (gone_last, F("slot").asc(nulls_last=True), "state", "worker", "relay_id")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[OneDatabase]:
        return SeenChangeList

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        if not configuration.destinations():
            return self.list_display
        name, state_now, slot, speed, *others = self.list_display
        return (name, state_now, slot, speed, "does_for_destinations", *others)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        more = ("does_for_destinations",) if configuration.destinations() else ()
        return (*self.fields, *more)

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            row.seen = _members(row._state.db).get(row.pk)
        return row

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        return False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # A callable: it runs during rendering, which is after all permission checks.
        context = {"outbox_fleet": lambda: fleet_summary_for(request), "title": "Relays"}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    @admin.display(description="Worker")
    def name(self, row: Any) -> str:
        return format_html(
            '<span class="{}">{}</span> <span class="outbox-quiet">{}</span>',
            "outbox-alive" if row.seen.alive else "outbox-gone",
            row.worker,
            row.relay_id,
        )

    @admin.display(description="State")
    def state_now(self, row: Any) -> str:
        if row.seen.alive or row.state == STOPPED:
            return str(row.state)
        return f"gone, was {row.state}"

    @admin.display(description="Messages per second")
    def speed(self, row: Any) -> str:
        return f"{row.rate:,.1f}" if row.seen.alive and row.rate else ""

    @admin.display(description="For destinations")
    def does_for_destinations(self, row: Any) -> str:
        """What it told at its last check-in: a relay without a slot does nothing for them."""
        told = row.seen.member.destinations if row.seen and row.seen.alive else {}
        return format_html_join("", '<div class="outbox-told">{}</div>', map(_told, told.items()))

    @admin.display(description="Counters")
    def shown_counters(self, row: Any) -> str:
        counters = row.seen.member.counters if row.seen else {}
        return ", ".join(f"{name} {count:,}" for name, count in counters.items()) or MISSING

    @admin.display(description="Last error")
    def error(self, row: Any) -> str:
        if not row.last_error:
            return ""
        return format_html(
            '<span class="outbox-error" title="{}">{}</span>',
            visible(row.last_error[:1000]),
            visible(first_line(row.last_error)),
        )

    @admin.display(description="Last error")
    def shown_error(self, row: Any) -> str:
        return preformatted(row.last_error or "")

    @admin.display(description="Last seen")
    def last_seen(self, row: Any) -> str:
        return f"{age(row.seen.seen_ago, 1)} ago"


def _members(alias: str) -> dict[str, SeenMember]:
    """The fleet, by the ids of the relays."""
    members = DjangoStore(alias, connection=connections[alias]).fleet().members
    return {each.member.relay_id: each for each in members}


def _told(destination: tuple[str, Mapping[str, Any]]) -> tuple[str]:
    """One destination: what the relay does for it, how fast, and what went wrong last."""
    name, told = destination
    rate, error = told.get("rate"), told.get("last_error")
    return (
        format_html(
            '{} <span class="outbox-quiet">{}{}</span>{}',
            one_line(name),
            one_line(str(told.get("state", ""))),
            f", {rate:,.1f}/s" if isinstance(rate, (int, float)) and rate else "",
            format_html(
                ' <span class="outbox-error" title="{}">{}</span>',
                visible(error[:1000]),
                visible(first_line(error)),
            )
            if isinstance(error, str) and error
            else "",
        ),
    )
