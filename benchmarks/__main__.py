"""`python -m benchmarks [--quick] [--only enqueue,relay] [--keep] [--output FOLDER]`: `make bench`.

`--keep` measures the sections of `--only` and leaves those that the report has beside them.
"""

from __future__ import annotations

import argparse
import json
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
from benchmarks.results import Results

if TYPE_CHECKING:
    from benchmarks.plan import Plan

DOCS = ROOT / "docs/benchmarks"
SECTIONS = ("enqueue", "relay", "latency", "growth", "cost", "profile", "held", "once", "events")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, one repetition")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"some of {','.join(SECTIONS)}")
    parser.add_argument("--output", type=Path, help="folder of the report")
    parser.add_argument("--keep", action="store_true", help="keep the report's other sections")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    names = [name for name in SECTIONS if name in options.only.split(",")]
    folder = options.output or (ROOT / "build/benchmarks" if options.quick else DOCS)
    kept = Results(plan.name, {})
    if options.keep:
        kept = Results.from_json(json.loads((folder / "results.json").read_text()))
        if kept.plan != plan.name:
            parser.error(f"{folder} has the report of a {kept.plan} run")
    with Environment() as environment:
        return run(environment, plan, names, folder, kept)


def run(environment: Environment, plan: Plan, names: list[str], folder: Path, kept: Results) -> int:
    """Measure, write the report and print which budgets hold; a missed one is no failure."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.project.settings"
    import django

    django.setup()
    from importlib import import_module

    from benchmarks import brokers, machine, report, summary
    from benchmarks.budgets import budgets
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
        results = kept.updated(bench.results) if kept.sections else bench.results
        judged = budgets(results, plan)
        report.write(folder, results, judged, comparisons(results, plan))
    if folder == DOCS and names == list(SECTIONS) and not bench.results.incomplete:
        summary.update(ROOT, bench.results, plan)
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
