"""The summary above both lists: how many rows, how old, held by which relay, and what fails.

The numbers are `Store.stats()`, on the connection of the request, so the page shows the same as the
commands, at the same bounded cost. If they can't be read (on a database that the outbox can't use),
the page still has its list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.db import connections
from django.urls import NoReverseMatch, reverse
from django.utils.formats import number_format

from celery_outbox_steps.errors import StoreError
from django_integration.admin import charts
from django_integration.admin.filters import STATE, TASK_NAME
from django_integration.admin.formatting import age
from django_integration.admin.paging import along_indexes
from django_integration.models import CeleryOutbox, CeleryOutboxDeadLetter
from django_integration.store import DjangoStore
from django_integration.store.session import write_alias
from django_integration.store.stats import STATS_CAP
from django_integration.upstream.django import admin_of

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite
    from django.http import HttpRequest

    from celery_outbox_steps.store import Stats

TOP = 5


@dataclass(frozen=True)
class Tile:
    """One number, what it counts, and where its rows are."""

    name: str
    value: str
    note: str = ""
    url: str = ""
    tone: str = "plain"


@dataclass(frozen=True)
class Panel:
    """The charts of one kind of row."""

    name: str
    note: str
    kind: str
    charts: tuple[charts.Chart, ...]
    partial: bool
    stacked: bool = False


@dataclass(frozen=True)
class Summary:
    """What the template shows."""

    tiles: tuple[Tile, ...]
    panels: tuple[Panel, ...]
    relays: tuple[dict[str, Any], ...]
    failing: tuple[dict[str, Any], ...]
    capped: bool
    cap: int = STATS_CAP
    rows_read: int = charts.ROWS_READ


def summary_for(request: HttpRequest, site: AdminSite) -> Summary | None:
    """The summary of the outbox that this project writes to; None if it can't be read."""
    alias = write_alias()
    try:
        with along_indexes(alias):
            store = DjangoStore(alias, connection=connections[alias])
            stats = store.stats(top=TOP)
            panels = _panels(store, stats)
    except StoreError:
        return None
    links = Links(request, site)
    return Summary(
        tiles=_tiles(stats, links),
        panels=panels,
        relays=tuple({**relay, "left": age(relay["seconds_left"])} for relay in stats.relays),
        failing=tuple(
            {**task, "url": links.outbox(**{STATE: "failing", TASK_NAME: task["task_name"]})}
            for task in stats.top_failing
        ),
        capped=stats.capped,
    )


class Links:
    """URLs within this admin site, only of pages that the user may see."""

    def __init__(self, request: HttpRequest, site: AdminSite) -> None:
        self._request = request
        self._site = site

    def outbox(self, **query: str) -> str:
        return self._list(CeleryOutbox, query)

    def dead_letters(self) -> str:
        return self._list(CeleryOutboxDeadLetter, {})

    def _list(self, model: type[Any], query: dict[str, str]) -> str:
        opts = model._meta
        page = admin_of(self._site, model)
        if page is None or not page.has_view_permission(self._request):
            return ""
        try:
            url = reverse(f"{self._site.name}:{opts.app_label}_{opts.model_name}_changelist")
        except NoReverseMatch:
            return ""
        return f"{url}?{urlencode(query)}" if query else url


def _tiles(stats: Stats, links: Links) -> tuple[Tile, ...]:
    kept = Tile(
        "Published",
        _counted(stats.published),
        "kept for the retention time",
        links.outbox(**{STATE: "published"}),
    )
    relays = len(stats.relays) or "no"
    return (
        Tile("In the outbox", _counted(stats.depth), "not published yet", links.outbox()),
        Tile(
            "Oldest",
            age(stats.oldest_pending_seconds) if stats.depth else "-",
            "since it was stored",
            links.outbox(**{STATE: "waiting"}),
        ),
        Tile(
            "In flight",
            _counted(stats.in_flight),
            f"held by {relays} relay{'s' if len(stats.relays) > 1 else ''}",
            links.outbox(**{STATE: "in_flight"}),
        ),
        Tile(
            "Failing",
            _counted(stats.failing, partly=stats.depth > STATS_CAP),
            "will be tried again",
            links.outbox(**{STATE: "failing"}),
            "warning" if stats.failing else "plain",
        ),
        Tile(
            "Dead letters",
            _counted(stats.dead_letters),
            "given up, until replayed",
            links.dead_letters(),
            "error" if stats.dead_letters else "plain",
        ),
        *((kept,) if stats.published else ()),
    )


def _panels(store: DjangoStore, stats: Stats) -> tuple[Panel, ...]:
    arrived, died = charts.arrivals(store), charts.deaths(store)
    note = (
        "Published messages are kept for a while here, so nearly all arrivals are counted."
        if stats.published
        else "Published messages leave the table, so only those still waiting are counted."
    )
    return (
        Panel(
            "Arrivals",
            note,
            "arrivals",
            _both(arrived),
            not arrived.complete,
            stacked=bool(stats.published),
        ),
        Panel(
            "Dead letters",
            "By the time of their last failure.",
            "deaths",
            _both(died),
            not died.complete,
        ),
    )


def _both(counted: charts.Counted) -> tuple[charts.Chart, ...]:
    return charts.last_hour(counted), charts.last_day(counted)


def _counted(rows: int, *, partly: bool = False) -> str:
    """Exact below the cap; from there on the database's estimate, or "at least"."""
    text = number_format(rows, force_grouping=True)
    if rows > STATS_CAP:
        return f"≈ {text}"
    return f"{text}+" if partly or rows == STATS_CAP else text
