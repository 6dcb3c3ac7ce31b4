"""The table above messages for destinations: of each, whether they get through, and what waits.

The verdict is that of `celery outbox status`. The numbers are the gauges' (`Store.sample()`), which
read a tenth of what the status reads: a project may have many destinations. If they can't be read,
the page still has its list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db import connections

from celery_outbox_steps.destination_health import (
    judge_destination,
    last_error_told,
    rate_told,
    told_about,
)
from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.health import age
from celery_outbox_steps.store import Stats
from django_integration.admin import configuration
from django_integration.admin.databases import alias_of
from django_integration.admin.filters import DESTINATION, destinations_of
from django_integration.admin.formatting import counted, one_line, shown_verdict
from django_integration.admin.links import Links
from django_integration.admin.paging import along_indexes
from django_integration.admin.rates import RateLine, rate_lines
from django_integration.store import DjangoStore
from django_integration.store.stats import SAMPLE_CAP

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite
    from django.http import HttpRequest

    from celery_outbox_steps.fleet import Fleet
    from celery_outbox_steps.health import Verdict
    from celery_outbox_steps.store import Sample


@dataclass(frozen=True)
class Number:
    """A count, and where its rows are."""

    name: str
    text: str
    url: str
    is_zero: bool


@dataclass(frozen=True)
class Line:
    """One destination."""

    name: str
    url: str
    is_chosen: bool
    verdict: Verdict
    numbers: tuple[Number, ...]
    oldest_due: str
    per_minute: str
    last_error: str
    """Unless the verdict has it already."""

    @property
    def columns(self) -> int:
        """Of the table: the name, the numbers and the last two."""
        return len(self.numbers) + 3


@dataclass(frozen=True)
class DestinationsSummary:
    """What the template shows."""

    lines: tuple[Line, ...]
    relays_url: str
    rates: tuple[RateLine, ...]
    cap: int = SAMPLE_CAP

    @property
    def capped(self) -> bool:
        return any(
            number.text.endswith("+") or "≈" in number.text
            for line in self.lines
            for number in line.numbers
        )


def destinations_summary_for(request: HttpRequest, site: AdminSite) -> DestinationsSummary | None:
    """The table of one database; None if it can't be read, or if there is no destination."""
    alias, links = alias_of(request), Links(request, site)
    try:
        names = destinations_of(request)
        with along_indexes(alias):
            store = DjangoStore(alias, connection=connections[alias])
            fleet = store.fleet()
            samples = {name: store.sample(name) for name in names}
            rates = rate_lines(store)
    except StoreError:
        return None
    chosen, known = request.GET.get(DESTINATION), configuration.destinations()
    lines = tuple(
        _line(name, sample, fleet, links, is_chosen=name == chosen, configured=name in known)
        for name, sample in samples.items()
    )
    return DestinationsSummary(lines, links.relays(), rates) if lines or rates else None


def _line(
    name: str, sample: Sample, fleet: Fleet, links: Links, *, is_chosen: bool, configured: bool
) -> Line:
    told = told_about(name, fleet)
    error = last_error_told(told)
    waits = sample.waiting or sample.in_flight
    judged = judge_destination(name, _stats(sample), fleet, configured=configured)
    return Line(
        name=one_line(name),
        url=links.deliveries(name),
        is_chosen=is_chosen,
        verdict=shown_verdict(judged),
        numbers=(
            _number("Waiting", sample.waiting, links.deliveries(name, "waiting")),
            _number("Held back", sample.held_back, links.deliveries(name, "held_back")),
            _number("Backing off", sample.backing_off, links.deliveries(name, "backing_off")),
            _number("Scheduled", sample.scheduled, links.deliveries(name, "scheduled")),
            _number("Dead letters", sample.dead_letters, links.dead_letters(name)),
        ),
        oldest_due=age(sample.oldest_due_seconds) if waits else "-",
        per_minute=counted(round(60 * rate_told(told))),
        last_error="" if error in judged.text else one_line(error),
    )


def _number(name: str, rows: int, url: str) -> Number:
    return Number(name, counted(rows, SAMPLE_CAP), url if rows else "", not rows)


def _stats(sample: Sample) -> Stats:
    """The numbers that a verdict is made of."""
    return Stats(
        waiting=sample.waiting,
        scheduled=sample.scheduled,
        in_flight=sample.in_flight,
        backing_off=sample.backing_off,
        held_back=sample.held_back,
        dead_letters=sample.dead_letters,
        oldest_due_seconds=sample.oldest_due_seconds,
        failing=0,
        published=0,
        capped=False,
    )
