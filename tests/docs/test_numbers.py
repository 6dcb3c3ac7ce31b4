"""The README's numbers are those of the committed benchmark run, and of nothing else."""

from __future__ import annotations

import json

from benchmarks import summary
from benchmarks.plan import FULL
from benchmarks.results import Results
from tests.docs.pages import README, ROOT


def test_the_readme_shows_the_numbers_of_the_committed_run() -> None:
    run = json.loads((ROOT / "docs/benchmarks/results.json").read_text())
    assert (run["plan"], run["incomplete"]) == ("full", [])
    assert "\n".join(summary.lines(Results.from_json(run), FULL)) in README.read_text()
