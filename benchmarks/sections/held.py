"""Held: how late a call with a countdown is published, and what held rows cost the others.

`agents/hold.py` commits the calls, `agents/consume.py` records the arrivals. Due times are the
database's; they are read before they come, and converted to this machine's monotonic clock.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.processes import Agent, ContenderError, run_agent
from benchmarks.results import Section
from benchmarks.sections import Contender, growth, latency, our_workers

if TYPE_CHECKING:
    from benchmarks.sections import Bench
    from benchmarks.table import Table

NONE_HELD = "no held rows"
LEAD = 5.0
"""Seconds from the INSERT to the first due time: enough to commit and to read the due times."""
TAIL = 1.5
"""Seconds after the last due time: a relay that polls once a second must have had its turn."""

LATENESS = """\
Milliseconds from the due time of a held call until a consumer behind RabbitMQ has the message: the
broker's own way is included. {:,} calls are stored with `outbox_bulk()`; the first is due {:g}
seconds later, the others at even distances over {:g} seconds. The due time is the row's `due_at`,
read from the database before it came; all of it on the same machine and clock. Relays have their
default settings. A "min" below zero would mean that a message came before its time."""

RATE = """\
Messages per second to RabbitMQ, confirmed, from PostgreSQL, with and without rows in the same table
that are held for another hour. {:,} rows are due when the relay starts; measured over the first
{:,} messages."""

UNITS = {"min": "ms", "p50": "ms", "p95": "ms", "p99": "ms", "max": "ms"}


def run(bench: Bench) -> None:
    lateness(bench)
    rate(bench)


def contender(workers: int = 1, database: str = "PostgreSQL") -> str:
    return f"this package, {database}, {workers} worker{'s' if workers > 1 else ''}"


def held_name(rows: int) -> str:
    return f"{rows:,} held rows"


def lateness(bench: Bench) -> None:
    plan = bench.plan
    text = LATENESS.format(plan.held_calls, LEAD, plan.held_seconds)
    section = Section("held_lateness", "Held calls: lateness", text, UNITS, chart="p50")
    bench.results.sections["held_lateness"] = section
    for _ in range(plan.held_rounds):
        for name, relay, table in _relays(bench):
            waits = _measure(bench, relay, table)
            ends = {"min": min(waits), "max": max(waits)}
            section.add(name, **ends, **latency.percentiles(waits))


def _relays(bench: Bench) -> list[tuple[str, Contender, Table]]:
    rabbitmq, table = bench.brokers["rabbitmq"], bench.table()
    relays = [
        (contender(number), our_workers(rabbitmq, table, number), table)
        for number in bench.plan.held_workers
    ]
    for title, vendor in latency.ELSEWHERE.items() if bench.plan.latency_elsewhere else ():
        elsewhere = bench.table(vendor)
        relays.append((contender(1, title), our_workers(rabbitmq, elsewhere), elsewhere))
    return relays


def _measure(bench: Bench, relay: Contender, table: Table) -> list[float]:
    """Start the relay, commit the calls, and wait until the last one was due."""
    plan = bench.plan
    relay.broker.purge()
    table.reset()
    with ExitStack() as stack:
        arrived = Path(stack.enter_context(tempfile.TemporaryDirectory()), "arrived")
        consumer = Agent("consume", "ours", table.where, str(arrived))
        for process in (consumer, *relay.processes()):
            stack.enter_context(process)
            process.wait_until_ready()
        spread = str(plan.held_calls), str(LEAD), str(plan.held_seconds)
        run_agent("hold", "ours", table.where, *spread)
        due = _due_times(table, plan.held_calls)
        time.sleep(max(due.values()) + TAIL - time.monotonic())
        consumer.ask("report")
        times = latency.read_times(arrived)
        if due.keys() - times.keys():
            raise ContenderError(f"{relay.name} published {len(times)} of {len(due)} held calls")
        return latency.waits(due, times)


def _due_times(table: Table, count: int) -> dict[str, float]:
    """By task id, on the monotonic clock of the consumer."""
    from django_integration.models import CeleryOutbox

    monotonic_zero = time.time() - time.monotonic()
    rows = CeleryOutbox.objects.using(table.where).values_list("task_id", "due_at")
    due = {task_id: at.timestamp() - monotonic_zero for task_id, at in rows if at}
    if len(due) < count or min(due.values()) < time.monotonic():
        raise ContenderError(f"{table.where}: calls were due before their due times were read")
    return due


def rate(bench: Bench) -> None:
    held, due = bench.plan.held
    messages = bench.plan.held_messages
    section = Section(
        "held_rate", "Held calls: the rate of the others", RATE.format(due, messages),
        {"rate": "messages/s"}, reference=NONE_HELD,
    )  # fmt: skip
    bench.results.sections["held_rate"] = section
    cases = [_backlog(bench, NONE_HELD, due, 0), _backlog(bench, held_name(held), due, held)]
    for number in range(bench.plan.held_rate_rounds):
        turn = cases if number % 2 == 0 else cases[::-1]
        growth.run_round(section, turn, messages)


def _backlog(bench: Bench, name: str, due: int, held: int) -> growth.Backlog:
    table = bench.table(name=f"outbox_bench_{held}_held")
    table.fill(due, held=held)
    return growth.Backlog(name, due, our_workers(bench.brokers["rabbitmq"], table))
