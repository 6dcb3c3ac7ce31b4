"""The numbers on README and on the home page are those of the committed benchmark run."""

from __future__ import annotations

import json

import pytest

from benchmarks import summary
from benchmarks.plan import FULL
from benchmarks.results import Results
from benchmarks.versus import Comparison
from tests.docs.pages import ROOT


@pytest.mark.parametrize("page", summary.PAGES)
def test_the_page_shows_the_numbers_of_the_committed_run(page: str) -> None:
    run = json.loads((ROOT / "docs/benchmarks/results.json").read_text())
    assert (run["plan"], run["incomplete"]) == ("full", [])
    (found,) = summary.MARK.finditer((ROOT / page).read_text())
    wanted = "\n".join(summary.lines(Results.from_json(run), FULL, summary.PAGES[page]))
    assert found[0] == f"{found[1]}{wanted}\n{found[2]}"


def test_who_is_ahead_is_judged_round_by_round() -> None:
    faster = Comparison("rate", "1/s", ours=[20, 4], theirs=[10, 2], more=True)
    slower = Comparison("wait", "ms", ours=[2, 20], theirs=[1, 10], more=False)
    assert (faster.times.median, faster.ahead) == (2, True)  # type: ignore[union-attr]
    assert (slower.times.median, slower.ahead) == (0.5, False)  # type: ignore[union-attr]


def test_what_costs_nothing_has_no_quotient_and_is_ahead() -> None:
    free = Comparison("idle", "%", ours=[0.0, 0.1], theirs=[0.9, 1.0], more=False)
    assert (free.times, free.ahead) == (None, True)
