"""The comparisons, one module each: every module interleaves its contenders, round by round.

A section only measures: it adds values to `Results` and judges none of them. `__main__.py` calls
`run(bench)` of each.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import brokers
from benchmarks.processes import Agent, Process, peer_relay, worker
from benchmarks.project.settings import IDLE
from benchmarks.table import TASKS, Kind, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.environment import Environment
    from benchmarks.plan import Plan
    from benchmarks.results import Results


@dataclass
class Bench:
    """What every section works with."""

    plan: Plan
    environment: Environment
    results: Results
    brokers: dict[str, brokers.Broker] = field(default_factory=dict)
    _tables: dict[tuple[str, str, str], Table] = field(default_factory=dict)

    def table(
        self, vendor: str = "postgresql", name: str = "outbox_bench", kind: Kind = TASKS
    ) -> Table:
        """Our table in a database of its own; made once."""
        return self._table(vendor, name, "ours", kind)

    def peer_table(self, name: str = "outbox_bench_peer") -> Table:
        return self._table("postgresql", name, "peer")

    def _table(self, vendor: str, name: str, side: str, kind: Kind = TASKS) -> Table:
        key = (vendor, name, side)
        if key not in self._tables:
            self._tables[key] = Table(self.environment.database(vendor, name, side), side, kind)
        return self._tables[key]


@dataclass
class Contender:
    """A program that moves messages to a broker: its processes, and the table it reads."""

    name: str
    broker: brokers.Broker
    processes: Callable[[], list[Process]]
    table: Table | None = None
    share: float = 1.0
    """The fraction of a run's messages: below 1 where all of them would take minutes."""

    def run(
        self,
        messages: int,
        fill: Callable[..., None] = Table.fill,
        payload: int = 100,
    ) -> Measured:
        """Start the processes, then add the rows; measured from the first message to the last."""
        self.broker.purge()
        if self.table:
            self.table.have_templates(payload)
            self.table.reset()
        with ExitStack() as stack:
            running = [stack.enter_context(process) for process in self.processes()]
            for process in running:
                process.wait_until_ready()
            fill_now = partial(fill, payload=payload)
            return self._watched(running, fill_now, int(messages * self.share))

    def run_on_backlog(self, messages: int) -> Measured:
        """Start the processes on existing rows, and end after this number of messages."""
        self.broker.purge()
        with ExitStack() as stack:
            running = [stack.enter_context(process) for process in self.processes()]
            throughput = brokers.watch(self.broker, int(messages * self.share), running)
            return Measured(throughput.rate, 0.0, 0.0)

    def _watched(
        self, running: list[Process], fill: Callable[..., None], messages: int
    ) -> Measured:
        cpu = sum(process.cpu() for process in running)
        if self.table:
            fill(self.table, messages)
        for process in running:
            if isinstance(process, Agent):
                process.tell("go")
        throughput = brokers.watch(self.broker, messages, running)
        if self.table:
            self.table.wait_until_empty()  # settling is part of the cost
        cpu = sum(process.cpu() for process in running) - cpu
        memory = sum(process.memory() for process in running)
        return Measured(throughput.rate, cpu / messages * 10_000, memory)


@dataclass
class Measured:
    """One run: messages per second, CPU seconds per 10,000 messages, resident MB."""

    rate: float
    cpu: float
    memory: float


def our_workers(broker: brokers.Broker, table: Table, count: int = 1) -> Contender:
    plural = "s" if count > 1 else ""

    def processes() -> list[Process]:
        numbers = range(1, count + 1)
        return [worker(table.where, broker.name, number, queue=IDLE) for number in numbers]

    return Contender(f"this package, {count} worker{plural}", broker, processes, table)


def the_peer(
    broker: brokers.Broker,
    table: Table,
    kind: str | None = None,
    name: str = "django-celery-outbox",
) -> Contender:
    where, kind = table.where, kind or broker.name
    return Contender(name, broker, lambda: [peer_relay(where, kind)], table, share=0.2)


def the_limit(
    loop: str, name: str, broker: brokers.Broker, table: Table, messages: int
) -> Contender:
    def processes() -> list[Process]:
        arguments = (loop, str(messages), "100")
        return [Agent("limit", "ours", table.where, *arguments, broker=broker.name)]

    return Contender(name, broker, processes)


def rounds(count: int, contenders: list[Contender]) -> Iterator[Contender]:
    """Every contender once per round; every other round in the opposite order."""
    for number in range(count):
        yield from contenders if number % 2 == 0 else reversed(contenders)
