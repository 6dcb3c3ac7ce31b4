"""`tests/suites.py` is the one table: directories, marks, report and CONTRIBUTING follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.services import ROOT
from tests.services.suite import WAITING, by_suite, closing_line
from tests.suites import SUITES, as_table, directories_with_tests

if TYPE_CHECKING:
    import pytest


def test_every_directory_with_tests_is_a_suite() -> None:
    assert directories_with_tests() == set(SUITES)


def test_every_suite_is_a_mark(pytestconfig: pytest.Config) -> None:
    marks = {line.partition(":")[0] for line in pytestconfig.getini("markers")}
    assert set(SUITES) <= marks


def test_a_test_is_marked_with_its_suite(request: pytest.FixtureRequest) -> None:
    assert {mark.name for mark in request.node.iter_markers()} & set(SUITES) == {"services"}


def test_every_suite_is_reported_even_where_nothing_ran() -> None:
    tallies = {"unit": {"passed": 3.0, "seconds": 0.5}, "other": {"failed": 1.0, "seconds": 0.1}}
    results = by_suite(tallies)
    assert [result.name for result in results] == [*SUITES, "other"]
    assert [result.verdict for result in results if result.verdict != "none"] == ["ok", "FAIL"]


def test_the_contributors_see_the_same_table() -> None:
    assert as_table() in (ROOT / "CONTRIBUTING.md").read_text()


def test_suites_that_run_by_themselves_exist() -> None:
    assert set(WAITING) < set(SUITES)


def test_the_closing_line_of_two_runs_has_the_sums() -> None:
    lines = [
        "=========== 2 failed, 10 passed, 1 skipped in 61.20s (0:01:01) ===========",
        "=========== 5 passed, 3 skipped in 70.00s (0:01:10) ===========",
    ]
    assert closing_line(lines, 71.5).strip("= ") == "2 failed, 15 passed, 4 skipped in 71.50s"
    assert closing_line(lines[:1], 71.5) == lines[0]


def test_a_run_that_did_not_end_leaves_no_closing_line_of_success() -> None:
    unfinished = "pytest did not get to its closing line"
    assert closing_line(["== 5 passed in 1.00s ==", unfinished], 2) == unfinished
