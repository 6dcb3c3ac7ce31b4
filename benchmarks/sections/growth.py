"""Growth: what backlogs, large messages, old snapshots and other databases do to the rate.

Backlogs have a database each, filled once (`table.py`) and refilled between rounds.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.results import Section
from benchmarks.sections import Contender, our_workers, the_peer

if TYPE_CHECKING:
    from benchmarks.sections import Bench

OURS = "this package"
PEER = "django-celery-outbox"
SMALLEST = f"{OURS}, 10,000 rows"
SMALLEST_PEER = f"{PEER}, 10,000 rows"
NO_SNAPSHOT = "no other session"
SNAPSHOT = "an old snapshot is held"

BACKLOG = """\
Messages per second to RabbitMQ, confirmed, by the number of rows in PostgreSQL when the relay
starts; measured over the first {:,} messages (django-celery-outbox: a fifth of them). "Backing off"
are rows that failed before and are due in an hour."""

SNAPSHOTS = """\
{:,} messages to RabbitMQ while another session holds a transaction (REPEATABLE READ) that began
before them, so that PostgreSQL can't remove any of the rows that the relay deletes."""

PAYLOADS = """\
Messages per second to RabbitMQ, confirmed, by the size of the argument; and megabytes of argument
per second."""

DATABASES = """\
Messages per second to RabbitMQ, confirmed, from each database, with one worker."""


class Backlog(NamedTuple):
    """A table with this number of due rows, and the relay that works on it."""

    name: str
    due: int
    relay: Contender


def run(bench: Bench) -> None:
    backlog(bench)
    snapshot(bench)
    payloads(bench)
    databases(bench)


def parked_name(side: str, parked: tuple[int, int]) -> str:
    return f"{side}, {sum(parked):,} rows, {parked[0]:,} of them backing off"


def backlog(bench: Bench) -> None:
    plan = bench.plan
    text = BACKLOG.format(plan.growth_messages)
    section = Section(
        "backlog", "Growth: the backlog", text, {"rate": "messages/s"},
        chart="rate", reference=SMALLEST,
    )  # fmt: skip
    bench.results.sections["backlog"] = section
    cases = _backlogs(bench)
    for _ in range(plan.growth_rounds):
        run_round(section, cases, plan.growth_messages)


def run_round(section: Section, cases: list[Backlog], messages: int) -> None:
    """Refill each table, and measure how fast its relay publishes the first messages."""
    for name, due, relay in cases:
        if relay.table:
            relay.table.top_up(due)
        section.add(name, rate=relay.run_on_backlog(min(messages, due)).rate)


def _backlogs(bench: Bench) -> list[Backlog]:
    rabbitmq = bench.brokers["rabbitmq"]
    parked, due = bench.plan.parked
    cases = []
    for count in bench.plan.backlogs:
        table = bench.table(name=f"outbox_bench_{count}")
        table.fill(count)
        cases.append(Backlog(f"{OURS}, {count:,} rows", count, our_workers(rabbitmq, table)))
    table = bench.table(name="outbox_bench_parked")
    table.fill(due, parked=parked)
    cases.append(Backlog(parked_name(OURS, bench.plan.parked), due, our_workers(rabbitmq, table)))
    smallest, peer = min(bench.plan.backlogs), bench.peer_table("outbox_bench_peer_small")
    peer.fill(smallest)
    relay = the_peer(rabbitmq, peer, "confirmed")
    cases.append(Backlog(f"{PEER}, {smallest:,} rows", smallest, relay))
    peer = bench.peer_table("outbox_bench_peer_parked")
    peer.fill(due, parked=parked)
    relay = the_peer(rabbitmq, peer, "confirmed")
    cases.append(Backlog(parked_name(PEER, bench.plan.parked), due, relay))
    return cases


def snapshot(bench: Bench) -> None:
    count, table = bench.plan.snapshot_messages, bench.table()
    section = Section(
        "snapshot", "Growth: an old snapshot", SNAPSHOTS.format(count), {"rate": "messages/s"},
        reference=NO_SNAPSHOT,
    )  # fmt: skip
    bench.results.sections["snapshot"] = section
    relay = our_workers(bench.brokers["rabbitmq"], table)
    for _ in range(bench.plan.growth_rounds):
        for name in (NO_SNAPSHOT, SNAPSHOT):
            with table.old_snapshot() if name == SNAPSHOT else nullcontext():
                measured = relay.run(count)
            section.add(name, rate=measured.rate)


def payloads(bench: Bench) -> None:
    section = Section(
        "payload",
        "Growth: the size of messages",
        PAYLOADS,
        {"rate": "messages/s", "volume": "MB/s"},
    )
    bench.results.sections["payload"] = section
    relay = our_workers(bench.brokers["rabbitmq"], bench.table())
    for _ in range(bench.plan.growth_rounds):
        for size, count in bench.plan.payloads:
            rate = relay.run(count, payload=size).rate
            section.add(f"{size:,} bytes", rate=rate, volume=rate * size / 1e6)


def databases(bench: Bench) -> None:
    section = Section("databases", "Databases", DATABASES, {"rate": "messages/s"}, chart="rate")
    bench.results.sections["databases"] = section
    names = {"PostgreSQL": "postgresql", "MariaDB": "mysql", "SQLite": "sqlite"}
    count = bench.plan.growth_messages
    for _ in range(bench.plan.growth_rounds):
        for name, vendor in names.items():
            relay = our_workers(bench.brokers["rabbitmq"], bench.table(vendor))
            section.add(name, rate=relay.run(count).rate)
