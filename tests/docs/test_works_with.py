"""The page "Works with" says what the committed run of the scenarios found, and nothing else."""

from __future__ import annotations

from tests.ecosystem import results
from tests.ecosystem.libraries import BY_NAME


def test_the_page_is_the_committed_results() -> None:
    assert results.PAGE.read_text() == results.page(), "run: python -m tests.ecosystem"


def test_every_library_was_tried_and_none_fails() -> None:
    known = results.load()["libraries"]
    assert sorted(known) == sorted(BY_NAME)
    outcomes = {outcome for each in known.values() for outcome in each["scenarios"].values()}
    assert outcomes == {"passed"}
