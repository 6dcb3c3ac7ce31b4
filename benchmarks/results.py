"""What was measured: values by section, contender and metric, one value per round.

A ratio is computed per round, from two values that were measured seconds apart, and only then is
the median taken: a slow minute of the machine then affects both sides of it.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class Spread(NamedTuple):
    """Median, smallest and largest of some values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass
class Section:
    """One comparison: `values[contender][metric]` is a list with one value per round."""

    name: str
    title: str
    text: str
    units: dict[str, str]
    """Metric → unit, in the order of the columns."""
    chart: str = ""
    """The metric that is plotted."""
    reference: str = ""
    """The contender that the others are compared with."""
    apart: dict[str, Any] = field(default_factory=dict)
    """If it was not measured in the report's run: what differed about the machine, and when."""
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, contender: str, **metrics: float) -> None:
        for metric, value in metrics.items():
            if metric not in self.units:
                raise KeyError(f"{metric} is not a metric of {self.name}")
            self.values.setdefault(contender, {}).setdefault(metric, []).append(value)
        shown = ", ".join(
            f"{name} {number(value)} {self.units[name]}" for name, value in metrics.items()
        )
        print(f"  {contender}: {shown}", flush=True)

    def spread(self, contender: str, metric: str) -> Spread | None:
        values = self.values.get(contender, {}).get(metric)
        return Spread.of(values) if values else None

    def ratio(self, contender: str, reference: str, metric: str) -> Spread | None:
        """How many times the reference, round by round."""
        pairs = [a / b for a, b in self._pairs(contender, reference, metric) if b]
        return Spread.of(pairs) if pairs else None

    def difference(self, contender: str, reference: str, metric: str) -> Spread | None:
        """How much more than the reference, round by round."""
        pairs = [a - b for a, b in self._pairs(contender, reference, metric)]
        return Spread.of(pairs) if pairs else None

    def _pairs(self, contender: str, reference: str, metric: str) -> list[tuple[float, float]]:
        found = (self.values.get(each, {}).get(metric, []) for each in (contender, reference))
        return list(zip(*found, strict=False))


@dataclass
class Results:
    """Everything that a run measured."""

    plan: str
    machine: dict[str, Any]
    sections: dict[str, Section] = field(default_factory=dict)
    loads: dict[str, float] = field(default_factory=dict)
    """The machine's load average when a section began: near 0 if it had nothing else to do."""
    incomplete: list[str] = field(default_factory=list)
    """Sections in which a contender failed; what they had measured until then is kept."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Results:
        """What a report holds."""
        sections = {name: Section(**found) for name, found in data["sections"].items()}
        loads = data["load_average_at_start_of"]
        return cls(data["plan"], data["machine"], sections, loads, data["incomplete"])

    def updated(self, newer: Results) -> Results:
        """These results, with the sections of a newer run in place of their own."""
        apart = _difference(newer.machine, self.machine)
        for section in newer.sections.values():
            section.apart = apart
        incomplete = [name for name in self.incomplete if name not in newer.loads]
        return Results(
            self.plan,
            self.machine,
            self.sections | newer.sections,
            self.loads | newer.loads,
            incomplete + newer.incomplete,
        )

    def as_json(self) -> dict[str, Any]:
        """With the texts: a section that is kept is described as it was when it was measured."""
        sections = {name: asdict(section) for name, section in self.sections.items()}
        return {
            "plan": self.plan,
            "machine": self.machine,
            "load_average_at_start_of": self.loads,
            "incomplete": self.incomplete,
            "sections": sections,
        }


def _difference(facts: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """The facts that are not the same in `others`."""
    found = {}
    for name, fact in facts.items():
        other = others.get(name)
        if isinstance(fact, dict) and isinstance(other, dict):
            fact = _difference(fact, other)  # noqa: PLW2901  of these facts, too, only some
            other = {}
        if fact != other:
            found[name] = fact
    return found


def number(value: float) -> str:
    """Three significant digits, thousands apart."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.095 or value == 0 else f"{value:.3f}"
