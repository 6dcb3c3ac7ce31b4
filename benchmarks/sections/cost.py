"""Cost: what the relay takes from its worker, its machine and its database.

Idle CPU and memory, load on the database, and throughput of the worker's own tasks. `versus.py`
subtracts what a worker takes without a relay.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks import brokers
from benchmarks.processes import Process, peer_relay, run_agent, worker
from benchmarks.project.settings import IDLE, TARGET
from benchmarks.results import Section
from benchmarks.sections import Contender, our_workers, the_peer

if TYPE_CHECKING:
    from benchmarks.sections import Bench
    from benchmarks.table import Table

WITHOUT = "a worker without a relay"
WITH_IDLE = "a worker with an idle relay"
WITH_BUSY = "a worker with a busy relay"
PEER_IDLE = "django-celery-outbox, its relay"
OURS = "this package"

TASKS = """\
Tasks per second that a worker (one prefork process) executes, of {:,} that do nothing and wait in
RabbitMQ. The busy relay publishes from PostgreSQL all the while, to another queue."""

IDLE_TEXT = """\
Percent of one core while nothing happens, for the process and its children. A worker's own share
is what it takes without a relay."""

DATABASE = """\
What PostgreSQL has to do per message: bytes of write-ahead log (the whole server's counter, so
whatever else it does is in there) and transactions (the database's counter), over {:,} messages;
and statements, counted in the client. Default batch sizes: 500 rows for this package, 100 for
django-celery-outbox."""


def run(bench: Bench) -> None:
    idle(bench)
    database(bench)
    tasks(bench)


def idle(bench: Bench) -> None:
    section = Section("idle", "Cost: idle", IDLE_TEXT, {"cpu": "%", "memory": "MB"})
    bench.results.sections["idle"] = section
    for table in (bench.table(), bench.peer_table()):
        table.reset()  # rows of a former section would keep the relay busy
    where, peer = bench.table().where, bench.peer_table().where
    contenders = {
        WITHOUT: lambda: worker(where, "rabbitmq", queue=IDLE, relay=False),
        WITH_IDLE: lambda: worker(where, "rabbitmq", queue=IDLE),
        PEER_IDLE: lambda: peer_relay(peer, "confirmed"),
    }
    for _ in range(bench.plan.growth_rounds):
        for name, start in contenders.items():
            cpu, memory = _idle(start(), bench.plan.idle_seconds)
            section.add(name, cpu=cpu, memory=memory)


def _idle(process: Process, seconds: float) -> tuple[float, float]:
    with process:
        process.wait_until_ready()
        time.sleep(1.5)
        before = process.cpu()
        time.sleep(seconds)
        return (process.cpu() - before) / seconds * 100, process.memory()


def database(bench: Bench) -> None:
    count = min(bench.plan.messages, 10_000)
    section = Section(
        "database", "Cost: the database", DATABASE.format(count),
        {"wal": "bytes", "transactions": "per 1,000 messages", "statements": "per 1,000 messages"},
    )  # fmt: skip
    bench.results.sections["database"] = section
    rabbitmq = bench.brokers["rabbitmq"]
    ours, peer = bench.table(), bench.peer_table()
    contenders = [
        (OURS, our_workers(rabbitmq, ours), ours),
        ("django-celery-outbox", the_peer(rabbitmq, peer, "confirmed"), peer),
    ]
    for _ in range(bench.plan.growth_rounds):
        for name, relay, table in contenders:
            wal, transactions = _counted(relay, table, count)
            table.fill(count)
            answer = run_agent("statements", table.side, table.where, str(count))
            statements = int(answer.split()[-1]) / count * 1000
            section.add(name, wal=wal, transactions=transactions, statements=statements)


def _counted(relay: Contender, table: Table, count: int) -> tuple[float, float]:
    """WAL bytes per message and transactions per thousand, of the relaying alone."""
    before, moved = (0, 0), 0

    def fill(filled: Table, messages: int, payload: int) -> None:
        nonlocal before, moved
        filled.fill(messages, payload)
        before, moved = _counters(filled), messages

    relay.run(count, fill)
    table.wait_until_alone()  # then the relay's session has reported everything
    wal, transactions = _counters(table)
    return (wal - before[0]) / moved, (transactions - before[1]) / moved * 1000


def _counters(table: Table) -> tuple[int, int]:
    table.execute("SELECT pg_stat_clear_snapshot()")
    ((wal, transactions),) = table.execute(
        "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn,"
        " (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())"
    )
    return int(wal), int(transactions)


def tasks(bench: Bench) -> None:
    section = Section(
        "tasks", "Cost: the worker's own tasks", TASKS.format(bench.plan.tasks),
        {"rate": "tasks/s"}, chart="rate", reference=WITHOUT,
    )  # fmt: skip
    bench.results.sections["tasks"] = section
    for number in range(bench.plan.task_rounds):
        names = [WITHOUT, WITH_IDLE, WITH_BUSY]
        for name in names if number % 2 == 0 else reversed(names):
            section.add(name, rate=_throughput(bench, name))


def _throughput(bench: Bench, name: str) -> float:
    """Tasks wait in the queue, and rows in the table if the relay is to be busy."""
    broker, table = bench.brokers["rabbitmq"], bench.table()
    broker.purge()
    table.reset()
    run_agent("tasks", "direct", table.where, str(bench.plan.tasks))
    brokers.watch(broker, bench.plan.tasks, [])
    if name == WITH_BUSY:
        table.fill(bench.plan.tasks * 8)
        table.execute(f"UPDATE celery_outbox SET options = replace(options, '{TARGET}', '{IDLE}')")
        table.execute("VACUUM celery_outbox")
    with worker(table.where, "rabbitmq", queue=TARGET, relay=name != WITHOUT) as process:
        return brokers.watch_drain(broker, bench.plan.tasks, [process]).rate
