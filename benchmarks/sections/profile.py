"""Profile: which step takes the time, inside one process.

`agents/phases.py` wraps the steps; there is no profiler, which would slow them down unevenly.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.processes import Agent
from benchmarks.results import Section

if TYPE_CHECKING:
    from benchmarks.sections import Bench

TEXT = """\
Microseconds per message or call, step by step, in one process and without a profiler: the fastest
of many batches. Where "wall" is more than "cpu" the step waits: for PostgreSQL, for the broker, for
the disk. The steps do not quite add up to all of it."""


def run(bench: Bench) -> None:
    section = Section("profile", "Profile", TEXT, {"wall": "µs", "cpu": "µs"})
    bench.results.sections["profile"] = section
    table = bench.table()
    for _ in range(bench.plan.growth_rounds):
        count = bench.plan.growth_messages
        _add(section, "one call", _ask(table.where, "enqueue", count, "rabbitmq"))
        for name in ("rabbitmq", "redis"):
            bench.brokers[name].purge()
            table.have_templates(100)
            table.reset()
            table.fill(count)
            _add(section, f"relay to {name}", _ask(table.where, "relay", count, name))
    table.reset()


def _ask(where: str, what: str, count: int, broker: str) -> dict[str, tuple[float, float]]:
    with Agent("phases", "ours", where, what, str(count), broker=broker) as agent:
        answer: dict[str, tuple[float, float]] = json.loads(agent.answer())
        return answer


def _add(section: Section, prefix: str, steps: dict[str, tuple[float, float]]) -> None:
    for step, (wall, cpu) in steps.items():
        section.add(f"{prefix}: {step}", wall=wall, cpu=cpu)
