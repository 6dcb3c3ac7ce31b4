"""The numbers on the page "Order and rates" are those of the code."""

from __future__ import annotations

import pytest

from celery_outbox_steps.rates import Budget, Rate, parse_rates, rate_of, take_turns
from django_integration.enqueue.order import LOCKS, ROWS
from tests.docs.pages import DOCS, blocks

PAGE = DOCS / "how-to" / "order-and-rates.md"


def rates() -> dict[str, Rate]:
    """Those of the page."""
    (block,) = [each.text for each in blocks(PAGE) if "CELERY_OUTBOX_RATES" in each.text]
    names: dict[str, dict[str, str]] = {}
    exec(block, names)
    return parse_rates(names["CELERY_OUTBOX_RATES"])


def test_the_numbers_of_locks() -> None:
    assert f"share {LOCKS:,}\n  of these locks ({ROWS:,} in MySQL and MariaDB)" in PAGE.read_text()


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("mail.welcome", "mail.welcome"),
        ("mail.reminder", "mail.*"),
        ("order.placed", "order.placed"),
        ("order.paid", None),
    ],
)
def test_the_first_pattern_that_fits_counts(name: str, pattern: str | None) -> None:
    found = rate_of(rates().values(), name)
    assert (found and found.pattern) == pattern


def test_a_rate_per_minute_is_the_same_as_one_per_second() -> None:
    per_minute, per_second = parse_rates({"a": "600/m", "b": "10/s"}).values()
    assert per_minute.per_second == pytest.approx(per_second.per_second)


def test_after_a_pause_what_one_second_allows_can_leave_at_once() -> None:
    long_ago = Budget(-3600.0, -3600.0)
    assert take_turns(parse_rates({"a": "600/m"})["a"], long_ago, 1000, 0).granted == 10
    assert take_turns(parse_rates({"a": "1/h"})["a"], long_ago, 1000, 0).granted == 1
