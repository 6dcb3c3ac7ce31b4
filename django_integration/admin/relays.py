"""The page of the relays: which workers relay, which stand by, and which are gone.

Read-only: a relay writes its own row. Whether it is alive, and how long ago it was seen, is what
`Store.fleet()` says, by the database's clock. `base.py` holds what the pages share.
"""

# ruff: noqa: ARG002  the signatures are Django's
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db import connections
from django.db.models import Case, F, When
from django.utils.html import format_html

from celery_outbox_steps.fleet import STOPPED
from celery_outbox_steps.health import age, first_line
from django_integration.admin.base import ReadOnlyAdmin
from django_integration.admin.fields import exact_time
from django_integration.admin.formatting import preformatted, visible
from django_integration.admin.summary import verdict_now
from django_integration.models import CeleryOutboxRelay, DatabaseNow
from django_integration.store import DjangoStore

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


class SeenChangeList(ChangeList):
    """Each row with the member of the fleet that it is, as `row.seen`."""

    result_list: Any

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        alias = self.root_queryset.db
        members = DjangoStore(alias, connection=connections[alias]).fleet().members
        by_id = {each.member.relay_id: each for each in members}
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
        "counters",
        "shown_error",
    )

    started = exact_time("started_at", "Started at")
    seen = exact_time("seen_at", "Seen at")
    expires = exact_time("expires_at", "Expires at")

    def get_ordering(self, request: HttpRequest) -> tuple[Any, ...]:
        gone_last = Case(When(expires_at__gt=DatabaseNow(), then=0), default=1)
        return (gone_last, F("slot").asc(nulls_last=True), "state", "worker", "relay_id")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return SeenChangeList

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        return False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # A callable: it runs during rendering, which is after all permission checks.
        context = {"outbox_verdict": verdict_now, "title": "Relays"}
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
