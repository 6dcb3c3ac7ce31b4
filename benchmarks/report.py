"""The report: JSON for programs, Markdown and plots for people, all from the same results.

Nothing is measured or judged here: `results.py` holds the values, `budgets.py` and `versus.py` the
judgements. The committed report is docs/benchmarks.
"""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

from benchmarks import plots
from benchmarks.results import number

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.budgets import Budget
    from benchmarks.results import Results, Section, Spread
    from benchmarks.versus import Comparison

QUIET = 0.7
INTRODUCTION = {
    "full": "`make bench` writes this page, with all of its numbers, tables and plots.",
    "quick": "**A quick run** (`make bench-quick`): few repetitions and small sizes, to see that "
    "everything works. Do not take these numbers for more than that.",
}


def write(
    folder: Path, results: Results, budgets: list[Budget], comparisons: list[Comparison]
) -> None:
    """Replace the folder's report with this one."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        if old.stem != "fleet":  # that one is written by `python -m benchmarks.fleet`
            old.unlink()
    data = results.as_json() | {"budgets": [_budget_json(budget) for budget in budgets]}
    (folder / "results.json").write_text(json.dumps(data, indent=1) + "\n")
    for section in results.sections.values():
        if section.chart:
            (folder / f"{section.name}.svg").write_text(plots.bars(section))
    (folder / "index.md").write_text("\n".join(_page(results, budgets, comparisons)) + "\n")


def _page(results: Results, budgets: list[Budget], comparisons: list[Comparison]) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield INTRODUCTION[results.plan]
    yield from _conditions(results)
    yield from _budget_table(budgets)
    yield from _versus(comparisons)
    for section in results.sections.values():
        yield from _section(section)
    yield from _machine(results)


def _conditions(results: Results) -> Iterator[str]:
    yield ""
    yield (
        "Contenders take turns: a round runs each of them once, and every table says how many "
        "rounds there were. The tables show the median and, in parentheses, the smallest and the "
        "largest round. Ratios are computed within a round, from values measured seconds apart."
    )
    if results.incomplete:
        yield ""
        yield f"**Not complete**: a contender failed in {', '.join(results.incomplete)}."
    highest = max(results.loads.values(), default=0.0)
    if results.loads and next(iter(results.loads.values())) > QUIET:
        yield ""
        yield (
            "**The machine was busy with other work** when this run began (load average "
            f"{next(iter(results.loads.values()))}, highest at the start of a section {highest}): "
            "absolute numbers are too low, and ratios are noisy."
        )


def _budget_table(budgets: list[Budget]) -> Iterator[str]:
    yield ""
    yield "## Budgets"
    yield ""
    yield "| what | budget | measured | holds |"
    yield "|---|---|---|---|"
    for budget in budgets:
        sign = "≤" if budget.at_most else "≥"
        bound = f"{sign} {budget.bound:g} {budget.unit}"
        verdict = "yes" if budget.holds else "**no**" if budget.measured else "not measured"
        yield f"| {budget.what} | {bound} | {_spread(budget.measured)} | {verdict} |"


def _versus(comparisons: list[Comparison]) -> Iterator[str]:
    if not comparisons:
        return
    yield ""
    yield "## Against django-celery-outbox"
    yield ""
    yield (
        'All rows of the tables below that contain both packages. "Times better" is the ratio, '
        "inverted where less is better. What an idle relay adds is the difference from a worker "
        "without one; for django-celery-outbox it is the whole relay process."
    )
    yield ""
    yield "| what | this package | django-celery-outbox | times better | ahead |"
    yield "|---|---|---|---|---|"
    for each in comparisons:
        ours, theirs = (number(statistics.median(side)) for side in (each.ours, each.theirs))
        ahead = "yes" if each.ahead else "**no**"
        values = f"{ours} {each.unit} | {theirs} {each.unit}"
        yield f"| {each.what} | {values} | {_spread(each.times)} | {ahead} |"


def _section(section: Section) -> Iterator[str]:
    yield ""
    yield f"## {section.title}"
    yield ""
    yield section.text
    yield ""
    if section.chart:
        yield f"![{section.title}]({section.name}.svg)"
        yield ""
    heads = [f"{name}, {unit}" for name, unit in section.units.items()]
    against = f"times {section.reference}" if section.reference else ""
    yield f"| | {' | '.join(heads)} |" + (f" {against} |" if against else "")
    yield "|---|" + "---|" * (len(heads) + bool(against))
    for contender in section.values:
        cells = [_spread(section.spread(contender, metric)) for metric in section.units]
        if against:
            metric = section.chart or next(iter(section.units))
            cells.append(_spread(section.ratio(contender, section.reference, metric)))
        yield f"| {contender} | {' | '.join(cells)} |"
    yield ""
    yield f"Rounds: {_rounds(section)}."
    if section.apart:
        facts = "; ".join(f"{name} {text}" for name, text in _facts(section.apart))
        yield f"Measured apart from the rest, with what differs from the table at the end: {facts}."


def _rounds(section: Section) -> int:
    return max((len(v) for each in section.values.values() for v in each.values()), default=0)


def _machine(results: Results) -> Iterator[str]:
    yield ""
    yield "## The machine"
    yield ""
    yield "| | |"
    yield "|---|---|"
    for name, text in _facts(results.machine):
        yield f"| {name} | {text} |"
    loads = ", ".join(f"{name} {load}" for name, load in results.loads.items())
    yield f"| load average at the start of | {loads} |"
    yield ""
    yield "All of it ran on this one machine: callers, databases, brokers, workers and observers "
    yield "share its cores. Every value of every round is in [results.json](results.json)."


def _facts(machine: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, fact in machine.items():
        text = ", ".join(f"{k} {v}" for k, v in fact.items()) if isinstance(fact, dict) else fact
        yield name.replace("_", " "), text


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    if spread.low == spread.high:
        return number(spread.median)
    return f"{number(spread.median)} ({number(spread.low)} to {number(spread.high)})"


def _budget_json(budget: Budget) -> dict[str, object]:
    return {
        "what": budget.what,
        "bound": budget.bound,
        "at_most": budget.at_most,
        "unit": budget.unit,
        "measured": budget.measured and budget.measured._asdict(),
        "holds": budget.holds,
    }
