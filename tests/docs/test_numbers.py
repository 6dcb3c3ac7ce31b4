"""The README's numbers are those of the committed benchmark run, and of nothing else."""

from __future__ import annotations

import json

from benchmarks import summary
from benchmarks.plan import FULL
from benchmarks.results import Results
from benchmarks.versus import Comparison
from tests.docs.pages import README, ROOT


def test_the_readme_shows_the_numbers_of_the_committed_run() -> None:
    run = json.loads((ROOT / "docs/benchmarks/results.json").read_text())
    assert (run["plan"], run["incomplete"]) == ("full", [])
    assert "\n".join(summary.lines(Results.from_json(run), FULL)) in README.read_text()


def test_who_is_ahead_is_judged_round_by_round() -> None:
    faster = Comparison("rate", "1/s", ours=[20, 4], theirs=[10, 2], more=True)
    slower = Comparison("wait", "ms", ours=[2, 20], theirs=[1, 10], more=False)
    assert (faster.times.median, faster.ahead) == (2, True)  # type: ignore[union-attr]
    assert (slower.times.median, slower.ahead) == (0.5, False)  # type: ignore[union-attr]


def test_what_costs_nothing_has_no_quotient_and_is_ahead() -> None:
    free = Comparison("idle", "%", ours=[0.0, 0.1], theirs=[0.9, 1.0], more=False)
    assert (free.times, free.ahead) == (None, True)
