"""The summary above the lists: the verdict, how many rows, how fast, held by whom, and what fails.

The numbers are `Store.stats()` and `Store.fleet()`, on the connection of the request, so the page
shows the same as the commands, at the same bounded cost. If they can't be read (on a database that
the outbox can't use), the page still has its list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import connections

from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.health import age, judge, paused_text
from django_integration.admin import charts, configuration
from django_integration.admin.databases import alias_of
from django_integration.admin.filters import OWN_BROKER
from django_integration.admin.formatting import counted, shown_verdict, visible
from django_integration.admin.links import Links
from django_integration.admin.paging import along_indexes
from django_integration.admin.rates import RateLine, rate_lines
from django_integration.store import DjangoStore
from django_integration.store.stats import SAMPLE_CAP, STATS_CAP

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite
    from django.http import HttpRequest

    from celery_outbox_steps.fleet import Fleet
    from celery_outbox_steps.health import Verdict
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
    stacked: bool = False
    read_first: str = "newest"
    """Which rows a count reads if there are more than it may read."""

    @property
    def partial(self) -> bool:
        return any(chart.unknown for chart in self.charts)


@dataclass(frozen=True)
class Summary:
    """What the template shows."""

    verdict: Verdict
    relays_url: str
    tiles: tuple[Tile, ...]
    panels: tuple[Panel, ...]
    capped: bool
    tables: Tables | None = None
    destinations_url: str = ""
    rates: tuple[RateLine, ...] = ()
    cap: int = STATS_CAP
    rows_read: int = charts.ROWS_READ


@dataclass(frozen=True)
class Tables:
    """What fails, and who holds what."""

    failing: tuple[dict[str, Any], ...]
    holders: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class FleetSummary:
    """What is above the relays."""

    verdict: Verdict
    pauses: tuple[str, ...]
    """A sentence for each destination that is paused."""


def fleet_summary_for(request: HttpRequest) -> FleetSummary | None:
    """The verdict on the outbox, and the pauses of destinations; None if they can't be read."""
    alias = alias_of(request)
    try:
        with along_indexes(alias):
            store = DjangoStore(alias, connection=connections[alias])
            fleet = store.fleet()
            verdict = judge(store.stats(top=0), fleet)
    except StoreError:
        return None
    pauses = sorted(fleet.pauses.items())
    told = (f"Destination {name} is {paused_text(pause)}" for name, pause in pauses)
    return FleetSummary(shown_verdict(verdict), tuple(map(visible, told)))


def summary_for(request: HttpRequest, site: AdminSite) -> Summary | None:
    """The summary of an outbox; None if it can't be read."""
    alias, links = alias_of(request), Links(request, site)
    try:
        with along_indexes(alias):
            store = DjangoStore(alias, connection=connections[alias])
            stats, fleet = store.stats(top=TOP), store.fleet()
            panels, rates = _panels(store, stats), rate_lines(store)
    except StoreError:
        return None
    return Summary(
        verdict=shown_verdict(judge(stats, fleet)),
        relays_url=links.relays(),
        tiles=_tiles(stats, fleet, links),
        panels=panels,
        capped=stats.capped,
        tables=_tables(stats, links),
        destinations_url=links.deliveries() if configuration.destinations() else "",
        rates=rates,
    )


def dead_summary_for(request: HttpRequest, site: AdminSite) -> Summary | None:
    """The part of it that is above dead letters, which are what people came for."""
    alias, links = alias_of(request), Links(request, site)
    try:
        with along_indexes(alias):
            store = DjangoStore(alias, connection=connections[alias])
            stats, fleet = store.stats(top=0), store.fleet()
            deaths = _deaths(store)
            others = [store.sample(name).dead_letters for name in configuration.destinations()]
    except StoreError:
        return None
    return Summary(
        verdict=shown_verdict(judge(stats, fleet)),
        relays_url=links.relays(),
        tiles=(
            _in_outbox(stats, links),
            _failing(stats, links),
            _all_dead_letters(stats, others, links) if others else _dead_letters(stats, links),
        ),
        panels=(deaths,),
        capped=stats.capped,
    )


def _tables(stats: Stats, links: Links) -> Tables:
    return Tables(
        failing=tuple(
            {**task, "url": links.outbox(state="failing", task_name=task["task_name"])}
            for task in stats.top_failing
        ),
        holders=tuple({**each, "left": age(each["seconds_left"])} for each in stats.holders),
    )


def _tiles(stats: Stats, fleet: Fleet, links: Links) -> tuple[Tile, ...]:
    """The first tile is the sum of the next four."""
    kept = Tile(
        "Published",
        _counted(stats.published),
        "kept for the retention time",
        links.outbox(state="published"),
    )
    return (
        _in_outbox(stats, links),
        Tile("Waiting", _counted(stats.waiting), _oldest(stats), links.outbox(state="waiting")),
        Tile(
            "Scheduled",
            _counted(stats.scheduled),
            "due later",
            links.outbox(state="scheduled"),
        ),
        Tile(
            "In flight",
            _counted(stats.in_flight),
            f"held by {len(stats.holders) or 'no'} relay{'s' if len(stats.holders) > 1 else ''}",
            links.outbox(state="in_flight"),
        ),
        Tile(
            "Backing off",
            _counted(stats.backing_off),
            "tried, due again later",
            links.outbox(state="backing_off"),
        ),
        _failing(stats, links),
        _dead_letters(stats, links),
        _throughput(fleet, links),
        *((kept,) if stats.published else ()),
    )


def _in_outbox(stats: Stats, links: Links) -> Tile:
    return Tile("In the outbox", _counted(stats.in_outbox), "not published yet", links.outbox())


def _failing(stats: Stats, links: Links) -> Tile:
    return Tile(
        "Failing",
        _counted(stats.failing, partly=stats.in_outbox >= STATS_CAP),
        "of these, after an error",
        links.outbox(state="failing"),
        "warning" if stats.failing else "plain",
    )


def _dead_letters(stats: Stats, links: Links) -> Tile:
    return Tile(
        "Dead letters",
        _counted(stats.dead_letters),
        _failed_tasks(stats) or "given up, until replayed",
        links.dead_letters(OWN_BROKER if configuration.destinations() else ""),
        "error" if stats.dead_letters else "plain",
    )


def _all_dead_letters(stats: Stats, for_destinations: list[int], links: Links) -> Tile:
    """Those of the app's own broker, and those of all destinations."""
    others = sum(for_destinations)
    total = stats.dead_letters + others
    return Tile(
        "Dead letters",
        _counted(total, partly=max(for_destinations) >= SAMPLE_CAP),
        f"{counted(others, SAMPLE_CAP)} for destinations",
        links.dead_letters(),
        "error" if total else "plain",
    )


def _throughput(fleet: Fleet, links: Links) -> Tile:
    """What the relays say of themselves: published rows leave no trace in the outbox."""
    rate = sum(each.member.rate for each in fleet.members if each.alive)
    per_minute = counted(round(60 * rate))
    return Tile("Published/min", per_minute, "in the last minute", links.relays())


def _failed_tasks(stats: Stats) -> str:
    failed = stats.failed_tasks
    return f"{_counted(failed)} failed task{'' if failed == 1 else 's'}" if failed else ""


def _oldest(stats: Stats) -> str:
    if not (stats.waiting or stats.in_flight):
        return "nothing is due"
    return f"for up to {age(stats.oldest_due_seconds)}"


def _panels(store: DjangoStore, stats: Stats) -> tuple[Panel, ...]:
    note = (
        "Published messages are kept for a while here, so nearly all arrivals are counted."
        if stats.published
        else "Published messages are deleted, so only those still in the table are counted."
    )
    return (
        Panel(
            "Arrivals",
            note,
            "arrivals",
            charts.draw(charts.arrivals(store)),
            stacked=bool(stats.published),
        ),
        _deaths(store),
        *((_scheduled(store, stats.scheduled),) if stats.scheduled else ()),
    )


def _deaths(store: DjangoStore) -> Panel:
    note = "By the time of their last failure."
    return Panel("Dead letters", note, "deaths", charts.draw(charts.deaths(store)))


def _scheduled(store: DjangoStore, total: int) -> Panel:
    counted = charts.scheduled(store)
    later = total - sum(minute.rows for minute in counted.minutes)
    return Panel(
        "Scheduled, by due time",
        "Messages that back off are not among them."
        + (f" {_counted(later)} more are due after that." if later > 0 else ""),
        "scheduled",
        charts.draw(counted),
        read_first="next",
    )


def _counted(rows: int, *, partly: bool = False) -> str:
    return counted(rows, STATS_CAP, partly=partly)
