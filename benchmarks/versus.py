"""Row by row against django-celery-outbox: which package is ahead, and by which factor.

Where the relay runs in a worker that a project needs anyway, only what it adds to that worker
counts. `report.py` prints the table.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.results import Spread
from benchmarks.sections import cost, enqueue, growth, latency, relay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.plan import Plan
    from benchmarks.results import Results, Section


@dataclass(frozen=True)
class Comparison:
    """Values round by round; `more` says whether more is better."""

    what: str
    unit: str
    ours: list[float]
    theirs: list[float]
    more: bool

    @property
    def times(self) -> Spread | None:
        """How many times better; None where a value is 0 or less and a ratio means nothing."""
        pairs = zip(self.ours, self.theirs, strict=False)
        if min(self.ours + self.theirs) <= 0:
            return None
        return Spread.of([a / b if self.more else b / a for a, b in pairs])

    @property
    def ahead(self) -> bool:
        if self.times is not None:
            return self.times.median > 1
        return not self.more and statistics.median(self.ours) < statistics.median(self.theirs)


def comparisons(results: Results, plan: Plan) -> list[Comparison]:
    """All comparisons that were measured on both sides."""
    return [each for each in _all(results, plan) if each.ours and each.theirs]


def _all(results: Results, plan: Plan) -> Iterator[Comparison]:
    def compare(
        what: str,
        section: str,
        ours: str,
        theirs: str,
        metric: str,
        more: bool = False,  # noqa: FBT001
    ) -> Comparison:
        found = results.sections.get(section)
        unit = found.units[metric] if found else ""
        return Comparison(
            what, unit, _values(found, ours, metric), _values(found, theirs, metric), more
        )

    yield compare("One call", "enqueue", enqueue.SINGLE, enqueue.PEER, "call")
    yield compare("Many calls, each", "enqueue", enqueue.BULK, enqueue.PEER, "call")
    confirmed, unconfirmed = relay.PEER_CONFIRMED, relay.PEER_UNCONFIRMED
    name = "relay_rabbitmq"
    yield compare("To RabbitMQ, both confirmed", name, relay.OURS, confirmed, "rate", True)
    yield compare("To RabbitMQ, only ours confirmed", name, relay.OURS, unconfirmed, "rate", True)
    yield compare("CPU per 10,000 to RabbitMQ", name, relay.OURS, confirmed, "cpu")
    yield compare("To Redis", "relay_redis", relay.OURS, relay.PEER, "rate", True)
    yield compare("CPU per 10,000 to Redis", "relay_redis", relay.OURS, relay.PEER, "cpu")
    for rate in plan.latency_rates:
        ours, theirs = (latency.contender(side, rate) for side in (latency.OURS, latency.PEER))
        yield compare(f"COMMIT to consumer, {rate:,}/s, p50", "latency", ours, theirs, "p50")
        yield compare(f"COMMIT to consumer, {rate:,}/s, p99", "latency", ours, theirs, "p99")
    parked = [growth.parked_name(side, plan.parked) for side in (growth.OURS, growth.PEER)]
    yield compare(
        "With 10,000 rows", "backlog", growth.SMALLEST, growth.SMALLEST_PEER, "rate", True
    )
    yield compare(f"With {parked[0].partition(', ')[2]}", "backlog", *parked, "rate", True)
    for what, metric in (
        ("Write-ahead log per message", "wal"),
        ("Transactions of the relay", "transactions"),
        ("Statements of the relay", "statements"),
    ):
        yield compare(what, "database", cost.OURS, relay.PEER, metric)
    yield from _added(results.sections.get("idle"))


def _added(idle: Section | None) -> Iterator[Comparison]:
    """What an idle relay takes: ours on top of its worker, theirs as a process of its own."""
    for what, metric in (("CPU that an idle relay adds", "cpu"), ("Memory that it adds", "memory")):
        worker, both = (_values(idle, name, metric) for name in (cost.WITHOUT, cost.WITH_IDLE))
        added = [a - b for a, b in zip(both, worker, strict=True)]
        unit = idle.units[metric] if idle else ""
        yield Comparison(what, unit, added, _values(idle, cost.PEER_IDLE, metric), more=False)


def _values(section: Section | None, contender: str, metric: str) -> list[float]:
    return section.values.get(contender, {}).get(metric, []) if section else []
