"""Small charts of the last hour and day, and of the next: counted by the database, drawn as SVG.

Published rows leave the table, so the number of all arrivals is unknown. What can be shown is what
is still here, by when it arrived (published rows too, where retention keeps them), dead letters by
when they died, and scheduled rows by when they are due. Each count reads at most `ROWS_READ` rows
along an index, and the chart marks the time that it does not reach as "not counted".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from django_integration.schema import DEAD_LETTER, OUTBOX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_integration.store import DjangoStore

ROWS_READ = 50_000
HEIGHT = 48
BAR = 10
"""Units per bar; the picture is stretched to the width of the page."""


class Period(NamedTuple):
    """What one chart covers: a number of bars, each of a number of minutes."""

    name: str
    unit: str
    bars: int
    minutes: int


LAST = (Period("Last hour", "minute", 60, 1), Period("Last 24 hours", "hour", 24, 60))
NEXT = (
    Period("Next hour", "minute", 60, 1),
    Period("Next 24 hours", "hour", 24, 60),
    Period("Next 7 days", "day", 7, 24 * 60),
)
FARTHEST = 60.0 * max(period.bars * period.minutes for period in NEXT)
"""Seconds ahead, to the end of the last chart."""


class Minute(NamedTuple):
    """The rows of one minute: `away` is how many minutes back or, for what is due, ahead."""

    away: int
    kept: bool
    """Published already, and kept."""
    rows: int


@dataclass(frozen=True)
class Counted:
    """Rows by minute, back from now or ahead of it."""

    minutes: tuple[Minute, ...]
    reaches: int | None
    """How many minutes away the count ends; None if no row is left out."""
    ahead: bool = False


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
    """What the template draws: now is at the right end, or at the left one if it looks ahead."""

    period: str
    unit: str
    bars: tuple[Bar, ...]
    total: int
    peak: int
    unknown: float
    """The width that was not counted, at the end that is farthest from now."""
    width: int
    ahead: bool
    height: int = HEIGHT

    @property
    def unknown_x(self) -> float:
        return round(self.width - self.unknown, 1) if self.ahead else 0

    @property
    def text(self) -> str:
        """The chart as text, for screen readers."""
        if not self.total:
            return f"{self.period}: none"
        return f"{self.period}: {self.total:,} in total, at most {self.peak:,} in one {self.unit}"


def arrivals(store: DjangoStore) -> Counted:
    """What is still in the outbox, by when it arrived."""
    return _looking_back(store.count_by_minute(OUTBOX, ROWS_READ))


def deaths(store: DjangoStore) -> Counted:
    """Dead letters, by when they died."""
    return _looking_back(store.count_by_minute(DEAD_LETTER, ROWS_READ))


def scheduled(store: DjangoStore) -> Counted:
    """Scheduled rows, by when they are due."""
    found = store.count_next_by_minute(FARTHEST, ROWS_READ)
    # What backs off is read along with them, but has no bar.
    minutes = (Minute(_whole(ahead), False, rows) for ahead, held, rows in found if held)
    return Counted(tuple(minutes), _reach(found), ahead=True)


def draw(counted: Counted) -> tuple[Chart, ...]:
    """The charts of one count."""
    return tuple(_chart(counted, period) for period in (NEXT if counted.ahead else LAST))


def _looking_back(found: Sequence[tuple[Any, ...]]) -> Counted:
    minutes = (Minute(_whole(ago), bool(kept), rows) for ago, kept, rows in found)
    return Counted(tuple(minutes), _reach(found))


def _reach(found: Sequence[tuple[Any, ...]]) -> int | None:
    """A count that read as many rows as it may ends in its farthest minute."""
    if sum(rows for _, _, rows in found) < ROWS_READ:
        return None
    return max(_whole(away) for away, _, _ in found)


def _whole(minutes: Any) -> int:
    """Minutes as the database rounded them: a float, and below 0 if its clock was set back."""
    return max(0, int(minutes))


def _chart(counted: Counted, period: Period) -> Chart:
    pending, kept = [0] * period.bars, [0] * period.bars
    for minute in counted.minutes:
        away = minute.away // period.minutes
        if away < period.bars:
            (kept if minute.kept else pending)[away] += minute.rows
    sums = [both[0] + both[1] for both in zip(pending, kept, strict=True)]
    reaches = period.bars if counted.reaches is None else counted.reaches / period.minutes
    return Chart(
        period=period.name,
        unit=period.unit,
        total=sum(sums),
        peak=max(sums),
        width=period.bars * BAR,
        unknown=round(max(0, period.bars - reaches) * BAR, 1),
        ahead=counted.ahead,
        bars=_bars(pending, kept, period.unit, ahead=counted.ahead),
    )


def _bars(
    pending: Sequence[int], kept: Sequence[int], unit: str, *, ahead: bool
) -> tuple[Bar, ...]:
    """From left to right; the rows are given by how far from now they are."""
    places = range(len(pending)) if ahead else reversed(range(len(pending)))
    scale = (HEIGHT - 2) / max(1, *map(sum, zip(pending, kept, strict=True)))
    return tuple(
        Bar(
            x=place * BAR + 1,
            width=BAR - 2,
            pending=_height(pending[away], scale),
            kept=_height(kept[away], scale),
            title=f"{_when(away, unit, ahead=ahead)}: {_rows(pending[away], kept[away])}",
        )
        for place, away in enumerate(places)
        if pending[away] or kept[away]
    )


def _height(rows: int, scale: float) -> float:
    """At least high enough to be visible."""
    return max(1.5, round(rows * scale, 2)) if rows else 0


def _when(away: int, unit: str, *, ahead: bool) -> str:
    if away == 0:
        return f"this {unit}"
    span = f"{away} {unit}{'s' if away > 1 else ''}"
    return f"in {span}" if ahead else f"{span} ago"


def _rows(pending: int, kept: int) -> str:
    published = f", {kept:,} of them published" if kept else ""
    return f"{pending + kept:,}{published}"
