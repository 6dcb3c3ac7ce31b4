"""`python -m benchmarks [--quick] [--only enqueue,relay] [--output FOLDER]`: see `make bench`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.environment import Environment, say
from benchmarks.plan import FULL, QUICK
from benchmarks.processes import ROOT, ContenderError

if TYPE_CHECKING:
    from benchmarks.plan import Plan

DOCS = ROOT / "docs/benchmarks"
SECTIONS = ("enqueue", "relay", "latency", "growth", "cost", "profile")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, one repetition")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"some of {','.join(SECTIONS)}")
    parser.add_argument("--output", type=Path, help="folder of the report")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    names = [name for name in SECTIONS if name in options.only.split(",")]
    default = ROOT / "build/benchmarks" if options.quick else DOCS
    with Environment() as environment:
        return run(environment, plan, names, options.output or default)


def run(environment: Environment, plan: Plan, names: list[str], folder: Path) -> int:
    """Measure, write the report and print which budgets hold; a missed one is no failure."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.project.settings"
    import django

    django.setup()
    from importlib import import_module

    from benchmarks import brokers, machine, report, summary
    from benchmarks.budgets import budgets
    from benchmarks.results import Results
    from benchmarks.sections import Bench
    from benchmarks.versus import comparisons

    bench = Bench(plan, environment, Results(plan.name, {}))
    bench.brokers = {each.name: each for each in (brokers.RabbitMQ(), brokers.Redis())}
    bench.results.machine = machine.facts(environment.services, bench.table())
    began = time.monotonic()
    try:
        for name in names:
            bench.results.loads[name] = machine.load()
            say(f"{name} (load average {bench.results.loads[name]})")
            try:
                import_module(f"benchmarks.sections.{name}").run(bench)
            except ContenderError as error:
                bench.results.incomplete.append(name)
                say(str(error))
    finally:
        for broker in bench.brokers.values():
            with suppress(Exception):
                broker.delete()
        judged = budgets(bench.results, plan)
        report.write(folder, bench.results, judged, comparisons(bench.results, plan))
    if folder == DOCS and names == list(SECTIONS) and not bench.results.incomplete:
        summary.update(ROOT / "README.md", bench.results, plan)
    say(f"{(time.monotonic() - began) / 60:.1f} minutes; the report is {folder / 'index.md'}")
    for budget in judged:
        verdict = "holds" if budget.holds else "missed" if budget.measured else "not measured"
        say(f"{verdict}: {budget.what}")
    return 0


def _interrupted(number: int, frame: object) -> None:  # noqa: ARG001
    """Treat SIGTERM like Ctrl-C, so that every started process is stopped."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupted)
    signal.signal(signal.SIGINT, _interrupted)
    sys.exit(main())
