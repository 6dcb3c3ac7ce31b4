"""Latency: from the return of COMMIT to a consumer behind the broker.

Two agents record the times, `agents/produce.py` and `agents/consume.py`, both by this machine's
monotonic clock.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.processes import Agent, Process, peer_relay, worker
from benchmarks.project.settings import IDLE
from benchmarks.results import Section

if TYPE_CHECKING:
    from benchmarks.sections import Bench
    from benchmarks.table import Table

OURS = "this package"
PEER = "django-celery-outbox"
ELSEWHERE = {"MariaDB": "mysql", "SQLite": "sqlite"}
ELSEWHERE_RATE = 100
LEAD_IN = 1.5
"""Seconds until traffic counts as steady."""

TEXT = """\
Milliseconds from the moment at which COMMIT has returned to the caller until a consumer behind
RabbitMQ has the message: the broker's own way is included. One process commits at an even pace,
one call per transaction (five at 1,000 per second), and a py-amqp consumer notes the arrivals; all
of it on the same machine and clock. Both relays have their default settings; traffic had gone on
for 1.5 seconds when counting began. "Achieved" is the rate that the caller kept up. Below zero
means that the message had arrived before the caller was told that its COMMIT was done."""

UNITS = {"p50": "ms", "p95": "ms", "p99": "ms", "achieved": "calls/s"}


class Case(NamedTuple):
    """One rate on one side."""

    name: str
    rate: int
    table: Table
    relay: Process


def contender(side: str, rate: int, database: str = "PostgreSQL") -> str:
    return f"{side}, {database}, {rate:,}/s"


def run(bench: Bench) -> None:
    section = Section("latency", "Latency, COMMIT to consumer", TEXT, UNITS, chart="p50")
    bench.results.sections["latency"] = section
    for _ in range(bench.plan.latency_rounds):
        for case in _cases(bench):
            section.add(case.name, **_measure(bench, case))


def _cases(bench: Bench) -> list[Case]:
    ours, peer = bench.table(), bench.peer_table()
    cases = []
    for rate in bench.plan.latency_rates:
        ours_there = worker(ours.where, "rabbitmq", queue=IDLE)
        cases.append(Case(contender(OURS, rate), rate, ours, ours_there))
        peer_there = peer_relay(peer.where, "confirmed")
        cases.append(Case(contender(PEER, rate), rate, peer, peer_there))
    for title, vendor in ELSEWHERE.items() if bench.plan.latency_elsewhere else ():
        table = bench.table(vendor)
        relay = worker(table.where, "rabbitmq", queue=IDLE)
        name = contender(OURS, ELSEWHERE_RATE, title)
        cases.append(Case(name, ELSEWHERE_RATE, table, relay))
    return cases


def _measure(bench: Bench, case: Case) -> dict[str, float]:
    bench.brokers["rabbitmq"].purge()
    case.table.reset()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        committed, arrived = Path(folder, "committed"), Path(folder, "arrived")
        side, where = case.table.side, case.table.where
        consumer = stack.enter_context(Agent("consume", "ours", where, str(arrived)))
        producer = stack.enter_context(Agent("produce", side, where, str(committed)))
        stack.enter_context(case.relay)
        for process in (consumer, producer, case.relay):
            process.wait_until_ready()
        time.sleep(1.5)  # what the producer stored while it got ready is on its way
        consumer.ask("forget")
        together = max(1, case.rate // 200)
        seconds = LEAD_IN + bench.plan.latency_seconds
        achieved = float(producer.ask(f"{case.rate} {seconds} {together}"))
        time.sleep(1.5)  # a relay that polls once a second must have had its turn
        consumer.ask("report")
        steady = _after_lead_in(read_times(committed))
        return percentiles(waits(steady, read_times(arrived))) | {"achieved": achieved}


def read_times(path: Path) -> dict[str, float]:
    pairs = (line.split() for line in path.read_text().splitlines())
    return {name: float(at) for name, at in pairs}


def _after_lead_in(committed: dict[str, float]) -> dict[str, float]:
    start = min(committed.values()) + LEAD_IN
    return {name: at for name, at in committed.items() if at >= start}


def waits(begun: dict[str, float], arrived: dict[str, float]) -> list[float]:
    """In milliseconds. A message that never arrived counts as arrived at the end of the run."""
    end = max([*arrived.values(), *begun.values()])
    return [(arrived.get(name, end) - at) * 1000 for name, at in begun.items()]


def percentiles(values: list[float]) -> dict[str, float]:
    percent = quantiles(values, n=100, method="inclusive")
    return {"p50": percent[49], "p95": percent[94], "p99": percent[98]}
