"""What people type for times and ages."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from celery_outbox_steps.arguments import age, interval, moment, seconds_since

TOKYO = timezone(timedelta(hours=9))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=timezone.utc)),
        ("2026-11-01T14:30", datetime(2026, 11, 1, 14, 30, tzinfo=timezone.utc)),
        ("2026-11-01 14:30:05", datetime(2026, 11, 1, 14, 30, 5, tzinfo=timezone.utc)),
        ("2026-11-01T14:30Z", datetime(2026, 11, 1, 14, 30, tzinfo=timezone.utc)),
        ("2026-11-01T14:30+09:00", datetime(2026, 11, 1, 14, 30, tzinfo=TOKYO)),
    ],
)
def test_a_time_is_utc_unless_it_has_a_zone(text: str, meant: datetime) -> None:
    assert moment(text) == meant


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "01.11.2026"])
def test_what_is_no_time_is_refused_with_what_would_be(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time: write 2026-11-01"):
        moment(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("0.5", 0.5), ("90s", 90), ("15m", 900), ("12h", 43200), ("30d", 2592000),
     ("2w", 1209600), ("1.5 h", 5400)],
)  # fmt: skip
def test_an_age_is_seconds_or_has_a_unit(text: str, seconds: float) -> None:
    assert age(text) == seconds


@pytest.mark.parametrize("text", ["", "-5", "2y", "d", "1h30m", "inf", "nan"])
def test_what_is_no_age_is_refused_with_what_would_be(text: str) -> None:
    with pytest.raises(ValueError, match="is not an age: write seconds, or 90s"):
        age(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "2s"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of seconds above 0"):
        interval(text)


def test_an_interval_is_seconds() -> None:
    assert (interval("0.5"), interval("2")) == (0.5, 2.0)


def test_seconds_since_a_time_in_any_zone() -> None:
    assert seconds_since(None) is None
    for zone in (TOKYO, timezone.utc):
        assert seconds_since(datetime.now(zone) - timedelta(hours=1)) == pytest.approx(3600, abs=5)
