"""How long an idle relay waits for a row that is not due yet, and how often it looks for one."""

from __future__ import annotations

from django_integration.schema import LOOK_AHEAD
from django_integration.store.next_due import NextDue


def test_it_looks_first_and_then_once_per_interval() -> None:
    next_due = NextDue()
    assert next_due.should_look(100.0)
    next_due.record(None, 100.0)
    assert not next_due.should_look(100.0 + LOOK_AHEAD / 2)
    assert next_due.should_look(100.0 + LOOK_AHEAD)


def test_told_about_a_new_row_while_it_looks_it_looks_once_more() -> None:
    """psycopg hands a NOTIFY over while the statement that looks is read."""
    next_due = NextDue()
    assert next_due.should_look(100.0)
    next_due.forget()
    next_due.record(None, 100.1)
    assert next_due.should_look(100.1)
    next_due.record(None, 100.1)
    assert not next_due.should_look(100.2)


def test_a_row_that_is_not_quite_due_is_waited_for() -> None:
    """SQLite computes in whole milliseconds: a row may be due in 0, and not be due yet."""
    next_due = NextDue()
    next_due.record(0.0, 100.0)
    assert 0 < (next_due.seconds_left(100.0) or 0) < 0.01


def test_it_waits_until_the_row_is_due_and_looks_again_then() -> None:
    next_due = NextDue()
    assert next_due.should_look(100.0)
    next_due.record(0.25, 100.0)
    assert next_due.seconds_left(100.0) == 0.25
    assert not next_due.should_look(100.2)
    assert next_due.should_look(100.25)


def test_a_time_that_has_come_ends_one_wait_and_not_the_next() -> None:
    """Otherwise a relay that may not claim, because the broker is away, would never rest."""
    next_due = NextDue()
    next_due.record(0.25, 100.0)
    next_due.waited(100.2)
    assert next_due.seconds_left(100.25) == 0.0
    next_due.waited(100.25)
    assert next_due.seconds_left(100.25) is None


def test_told_about_a_new_row_it_looks_again_and_keeps_what_it_knows() -> None:
    next_due = NextDue()
    next_due.record(30.0, 100.0)
    next_due.forget()
    assert next_due.should_look(100.0)
    assert next_due.seconds_left(100.0) == 30.0
