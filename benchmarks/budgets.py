"""The budgets: what is promised, what was measured, and whether the promise holds.

A missed budget fails nothing: `report.py` shows it in the report. Each budget compares two
contenders of one section, or has a fixed bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.sections import cost, enqueue, events, growth, held, latency, once, relay

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.results import Results, Spread

TIMES = "times"


@dataclass(frozen=True)
class Budget:
    """`bound` is the most if `at_most`, else the least; `measured` is None if not measured."""

    what: str
    bound: float
    at_most: bool
    unit: str
    measured: Spread | None

    @property
    def holds(self) -> bool:
        if self.measured is None:
            return False
        value = self.measured.median
        return value <= self.bound if self.at_most else value >= self.bound


def budgets(results: Results, plan: Plan) -> list[Budget]:
    """All of them, in the order of the design."""

    def times(section: str, contender: str, reference: str, metric: str) -> Spread | None:
        found = results.sections.get(section)
        return found.ratio(contender, reference, metric) if found else None

    def value(section: str, contender: str, metric: str) -> Spread | None:
        found = results.sections.get(section)
        return found.spread(contender, metric) if found else None

    def more(section: str, contender: str, reference: str, metric: str) -> Spread | None:
        found = results.sections.get(section)
        return found.difference(contender, reference, metric) if found else None

    parked = growth.parked_name(growth.OURS, plan.parked)
    steady = latency.contender(latency.OURS, 200)
    held_rows = held.held_name(plan.held[0])
    return [
        Budget("Enqueue, one call in an open transaction, against `apply_async` to RabbitMQ", 1.0,
               True, TIMES, times("enqueue", enqueue.SINGLE, enqueue.DIRECT, "call")),
        Budget("Enqueue in bulk, per task, against a single call", 0.4,
               True, TIMES, times("enqueue", enqueue.BULK, enqueue.SINGLE, "call")),
        Budget("Relay to RabbitMQ, confirmed, against a bare py-amqp loop", 0.85,
               False, TIMES, times("relay_rabbitmq", relay.OURS, relay.AMQP, "rate")),
        Budget("Relay to Redis, against a bare kombu `Producer.batch()` loop", 0.85,
               False, TIMES, times("relay_redis", relay.OURS, relay.KOMBU, "rate")),
        Budget(f"Relay with {sum(plan.parked):,} rows, {plan.parked[0]:,} of them backing off, "
               "against 10,000 rows", 0.9,
               False, TIMES, times("backlog", parked, growth.SMALLEST, "rate")),
        Budget("Relay while another session holds an old snapshot, against none", 0.8,
               False, TIMES, times("snapshot", growth.SNAPSHOT, growth.NO_SNAPSHOT, "rate")),
        Budget("COMMIT to consumer at 200/s on PostgreSQL, p50", 10,
               True, "ms", value("latency", steady, "p50")),
        Budget("COMMIT to consumer at 200/s on PostgreSQL, p99", 50,
               True, "ms", value("latency", steady, "p99")),
        Budget("A worker's task throughput with an idle relay, against none", 0.97,
               False, TIMES, times("tasks", cost.WITH_IDLE, cost.WITHOUT, "rate")),
        Budget("Due time of a held call to consumer on PostgreSQL, p50", 20,
               True, "ms", value("held_lateness", held.contender(), "p50")),
        Budget("Due time of a held call to consumer on PostgreSQL, p99", 100,
               True, "ms", value("held_lateness", held.contender(), "p99")),
        Budget(f"Relay with {held_rows} besides the due ones, against none", 0.95,
               False, TIMES, times("held_rate", held_rows, held.NONE_HELD, "rate")),
        Budget("`@once` around an empty task on PostgreSQL, more than `transaction.atomic`", 1000,
               True, "µs", more("once", once.contender(once.ONCE), once.contender(once.ATOMIC),
                                "run")),
        Budget("Events without a key, against tasks", 0.9,
               False, TIMES, times("events", events.UNORDERED, events.TASKS, "rate")),
        Budget("Events of 1,000 keys, in the order of each, against tasks", 0.5,
               False, TIMES, times("events", events.ORDERED, events.TASKS, "rate")),
    ]  # fmt: skip
