"""Small charts of the last hour and the last day: counted by the database, drawn as plain SVG.

Published rows leave the table, so the number of all arrivals is unknown. What can be shown is what
is still here, by when it arrived (published rows too, where retention keeps them), and dead letters
by when they died. Each count reads at most `ROWS_READ` rows along an index, and the chart marks the
time that it does not reach as "not counted".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from django_integration.schema import DEAD_LETTER, OUTBOX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_integration.store import DjangoStore

ROWS_READ = 50_000
DAY = 24 * 60
HEIGHT = 48
BAR = 10
"""Units per bar; the picture is stretched to the width of the page."""


class Minute(NamedTuple):
    """The rows of one minute: `ago` is how many minutes back."""

    ago: int
    kept: bool
    """Published already, and kept."""
    rows: int


@dataclass(frozen=True)
class Counted:
    """Rows by minute, the last day of them."""

    minutes: tuple[Minute, ...]
    complete: bool
    """False: there are more rows than were read, and the older ones are not counted."""

    @property
    def reaches(self) -> int:
        """How many minutes back the count goes."""
        return DAY if self.complete else max((minute.ago for minute in self.minutes), default=0)


@dataclass(frozen=True)
class Bar:
    """One bar: pending rows at the bottom, kept ones on top."""

    x: int
    width: int
    pending: float
    kept: float
    title: str

    @property
    def pending_y(self) -> float:
        return HEIGHT - self.pending

    @property
    def kept_y(self) -> float:
        return HEIGHT - self.pending - self.kept


@dataclass(frozen=True)
class Chart:
    """What the template draws."""

    period: str
    unit: str
    bars: tuple[Bar, ...]
    total: int
    peak: int
    unknown: float
    """The width at the left that was not counted."""
    width: int
    height: int = HEIGHT

    @property
    def text(self) -> str:
        """The chart as text, for screen readers."""
        if not self.total:
            return f"{self.period}: none"
        return f"{self.period}: {self.total:,} in total, at most {self.peak:,} in one {self.unit}"


def arrivals(store: DjangoStore) -> Counted:
    """What is still in the outbox, by when it arrived."""
    return _counted(store.count_by_minute(OUTBOX, ROWS_READ))


def deaths(store: DjangoStore) -> Counted:
    """Dead letters, by when they died."""
    return _counted(store.count_by_minute(DEAD_LETTER, ROWS_READ))


def last_hour(counted: Counted) -> Chart:
    return _chart(counted, "Last hour", "minute", bars=60, minutes=1)


def last_day(counted: Counted) -> Chart:
    return _chart(counted, "Last 24 hours", "hour", bars=24, minutes=60)


def _counted(rows: list[tuple[Any, ...]]) -> Counted:
    found = [Minute(max(0, int(ago)), bool(kept), count) for ago, kept, count in rows]
    return Counted(
        minutes=tuple(minute for minute in found if minute.ago < DAY),
        complete=sum(minute.rows for minute in found) < ROWS_READ,
    )


def _chart(counted: Counted, period: str, unit: str, *, bars: int, minutes: int) -> Chart:
    pending, kept = [0] * bars, [0] * bars
    for minute in counted.minutes:
        back = minute.ago // minutes
        if back < bars:
            (kept if minute.kept else pending)[bars - 1 - back] += minute.rows
    sums = [both[0] + both[1] for both in zip(pending, kept, strict=True)]
    peak = max(sums)
    missing = max(0, bars - counted.reaches / minutes) if not counted.complete else 0
    return Chart(
        period=period,
        unit=unit,
        total=sum(sums),
        peak=peak,
        width=bars * BAR,
        unknown=round(missing * BAR, 1),
        bars=_bars(pending, kept, peak, unit),
    )


def _bars(pending: Sequence[int], kept: Sequence[int], peak: int, unit: str) -> tuple[Bar, ...]:
    scale = (HEIGHT - 2) / max(1, peak)
    return tuple(
        Bar(
            x=place * BAR + 1,
            width=BAR - 2,
            pending=_height(pending[place], scale),
            kept=_height(kept[place], scale),
            title=_title(pending[place], kept[place], len(pending) - 1 - place, unit),
        )
        for place in range(len(pending))
        if pending[place] or kept[place]
    )


def _height(rows: int, scale: float) -> float:
    """At least high enough to be visible."""
    return max(1.5, round(rows * scale, 2)) if rows else 0


def _title(pending: int, kept: int, back: int, unit: str) -> str:
    when = f"this {unit}" if back == 0 else f"{back} {unit}{'s' if back > 1 else ''} ago"
    published = f", {kept:,} of them published" if kept else ""
    return f"{when}: {pending + kept:,}{published}"
