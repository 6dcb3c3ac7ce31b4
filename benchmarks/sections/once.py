"""Once: what `@once` adds to a task, in the worker that runs it.

Each contender is an agent of its own (`agents/once.py`), ready before the first round, on each
database in turn.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.processes import Agent
from benchmarks.results import Section

if TYPE_CHECKING:
    from benchmarks.sections import Bench

ATOMIC = "transaction.atomic, empty"
ONCE = "@once, empty"
CONTENDERS = {
    ATOMIC: "atomic",
    ONCE: "once",
    "transaction.atomic, one INSERT": "atomic_write",
    "@once, one INSERT": "once_write",
    "@once, a duplicate": "duplicate",
}
VENDORS = {"postgresql": "PostgreSQL", "mysql": "MariaDB", "sqlite": "SQLite"}

TEXT = """\
A task run by Celery's own tracer, without a result backend: its median time. A transaction without
a statement does not reach the disk, and `@once` writes a row: so the INSERT, with which both wait
for the disk, shows what it adds to a task that does something."""


def contender(name: str, vendor: str = "postgresql") -> str:
    return f"{name} ({VENDORS[vendor]})"


def run(bench: Bench) -> None:
    section = Section(
        "once", "Once", TEXT, {"run": "µs", "cpu": "µs"}, chart="run", reference=contender(ATOMIC)
    )
    bench.results.sections["once"] = section
    for vendor in VENDORS if bench.plan.latency_elsewhere else ["postgresql"]:
        _measure(bench, section, vendor)


def _measure(bench: Bench, section: Section, vendor: str) -> None:
    where = bench.table(vendor).where
    with ExitStack() as stack:
        agents = {
            name: stack.enter_context(Agent("once", "ours", where, form))
            for name, form in CONTENDERS.items()
        }
        for agent in agents.values():
            agent.wait_until_ready()
        for number in range(bench.plan.rounds):
            for name in list(agents) if number % 2 == 0 else reversed(agents):
                answer = agents[name].ask(str(bench.plan.calls))
                section.add(contender(name, vendor), **json.loads(answer))
