"""`CELERY_OUTBOX_RATES`: what is a rate, and what the error about anything else says."""

from __future__ import annotations

from typing import Any

import pytest

from celery_outbox_steps.errors import ConfigurationError
from celery_outbox_steps.rates import rate_of
from celery_outbox_steps.settings import BY_NAME


@pytest.mark.parametrize(
    ("text", "per_second"),
    [("10/s", 10.0), ("600/m", 10.0), (" 1.5 / h ", 1.5 / 3600), ("86400/d", 1.0)],
)
def test_a_rate_is_a_number_per_second_minute_hour_or_day(text: str, per_second: float) -> None:
    assert BY_NAME["rates"].parse({"mail.*": text})["mail.*"].per_second == per_second


def test_the_first_pattern_that_fits_counts() -> None:
    rates = BY_NAME["rates"].parse({"mail.now": "2/s", "mail.*": "1/s"}).values()
    found = rate_of(rates, "mail.now")
    assert found is not None
    assert found.per_second == 2
    assert rate_of(rates, "shop.ship") is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (["mail"], 'a dictionary such as {"mail.*": "600/m"}'),
        ({"mail": "fast"}, "['mail'] must be a text such as"),
        ({"mail": "0/s"}, "a number above 0"),
        ({"mail": "-1/s"}, "not '-1/s'"),
        ({"mail": "1/w"}, "per s, m, h or d"),
        ({"mail": 10}, "not 10"),
        ({"": "1/s"}, "the pattern ''"),
        ({5: "1/s"}, "the pattern 5"),
        ({"x" * 256: "1/s"}, "at most 255 characters"),
    ],
    ids=str,
)
def test_a_mistake_is_named(value: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        BY_NAME["rates"].parse(value)
    assert str(error.value).startswith("CELERY_OUTBOX_RATES")
    assert words in str(error.value)
