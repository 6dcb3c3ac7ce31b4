"""The benchmark page is what the program writes from its results, and says what it has kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks import report
from benchmarks.budgets import budgets
from benchmarks.plan import FULL
from benchmarks.results import Results, Section
from benchmarks.versus import comparisons
from tests.docs.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

COMMITTED = ROOT / "docs/benchmarks"


def write(folder: Path, results: Results) -> None:
    report.write(folder, results, budgets(results, FULL), comparisons(results, FULL))


def a_run(date: str, *names: str) -> Results:
    machine = {"date": date, "cores": 2, "packages": {"celery": "5.7", "psycopg": date}}
    sections = {name: Section(name, name, "", {"rate": "1/s"}) for name in names}
    return Results("full", machine, sections, loads=dict.fromkeys(names, 0.1))


def test_the_committed_page_and_its_plots_are_written_from_the_committed_results(
    tmp_path: Path,
) -> None:
    run = json.loads((COMMITTED / "results.json").read_text())
    write(tmp_path, Results.from_json(run))
    for written in tmp_path.iterdir():
        assert written.read_text() == (COMMITTED / written.name).read_text(), written.name


def test_a_section_that_is_measured_again_replaces_only_itself() -> None:
    kept, newer = a_run("Monday", "relay", "held"), a_run("Tuesday", "held")
    merged = kept.updated(newer)
    assert merged.sections == {"relay": kept.sections["relay"], "held": newer.sections["held"]}
    assert merged.machine["date"] == "Monday"


def test_the_page_says_when_a_section_was_measured_and_what_differed(tmp_path: Path) -> None:
    write(tmp_path, a_run("Monday", "relay").updated(a_run("Tuesday", "held")))
    page = (tmp_path / "index.md").read_text().splitlines()
    (line,) = [line for line in page if line.startswith("Measured apart")]
    assert line.endswith(": date Tuesday; packages psycopg Tuesday.")


def test_a_section_that_failed_before_is_complete_once_it_was_measured_again() -> None:
    kept = a_run("Monday", "relay", "held")
    kept.incomplete = ["held", "relay"]
    assert kept.updated(a_run("Tuesday", "held")).incomplete == ["relay"]
