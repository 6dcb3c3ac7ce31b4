"""Events for a destination next to tasks: without a key, and in the order of their keys.

Everything is published to the same queue in RabbitMQ, and measured there (`brokers.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.processes import worker
from benchmarks.project.settings import IDLE
from benchmarks.results import Section
from benchmarks.sections import Contender, rounds
from benchmarks.table import EVENTS, KEYED_EVENTS

if TYPE_CHECKING:
    from benchmarks.brokers import Broker
    from benchmarks.sections import Bench
    from benchmarks.table import Table

TASKS = "tasks"
UNORDERED = "events without a key"
ORDERED = "events of 1,000 keys"

TEXT = """\
Messages of 100 bytes of data from PostgreSQL to RabbitMQ, confirmed, by one worker: tasks to the
app's own broker, and events to a destination on the same server. Of one key a message is sent after
the one before it is confirmed. Seen from the broker's side, from the first message in the queue to
the last; CPU (seconds per 10,000 messages) is that of the whole worker."""


def run(bench: Bench) -> None:
    rabbitmq = bench.brokers["rabbitmq"]
    section = Section(
        "events", "Events to a destination", TEXT, {"rate": "messages/s", "cpu": "s"},
        chart="rate", reference=TASKS,
    )  # fmt: skip
    bench.results.sections["events"] = section
    contenders = [
        _contender(TASKS, rabbitmq, bench.table()),
        _contender(UNORDERED, rabbitmq, bench.table(name="outbox_bench_events", kind=EVENTS)),
        _contender(ORDERED, rabbitmq, bench.table(name="outbox_bench_keys", kind=KEYED_EVENTS)),
    ]
    for contender in rounds(bench.plan.rounds, contenders):
        measured = contender.run(bench.plan.messages)
        section.add(contender.name, rate=measured.rate, cpu=measured.cpu)


def _contender(name: str, broker: Broker, table: Table) -> Contender:
    environ = {} if name == TASKS else {"OUTBOX_BENCH_EVENTS": "1"}
    return Contender(
        name,
        broker,
        lambda: [worker(table.where, broker.name, queue=IDLE, environ=environ)],
        table,
    )
