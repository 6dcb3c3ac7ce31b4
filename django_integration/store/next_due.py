"""When the next row is due, as far as a relay knows: pure logic, time is an argument.

A relay that finds nothing looks at most once per `LOOK_AHEAD` at the due time of the next row, and
waits no longer than until then. It looks again when that time has come, and when it was told about
a row that is due before the next look. `lane.py` asks the database.
"""

from __future__ import annotations

from django_integration.schema import LOOK_AHEAD

SHORTEST = 0.001
"""Seconds. A row that is due in less may not be due yet: databases compute in milliseconds."""


class NextDue:
    """The due time of the next row, by this machine's monotonic clock."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._look_at = float("-inf")

    def should_look(self, now: float) -> bool:
        """Whether to read the next due time now, and `record` it."""
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_AHEAD
        return True

    def record(self, seconds: float | None, now: float) -> None:
        """The next row is due in this many seconds; None: there is none."""
        self._at = None if seconds is None else now + max(seconds, SHORTEST)
        if self._at is not None:
            self._look_at = min(self._look_at, self._at)

    def forget(self) -> None:
        """A new row may be due sooner, also than the one that is being read right now."""
        self._look_at = float("-inf")

    def seconds_left(self, now: float) -> float | None:
        """How long to wait for it; 0 if its time has come since it was read. None: not known."""
        return None if self._at is None else max(self._at - now, 0.0)

    def waited(self, now: float) -> None:
        """A time that has come ends one wait, and not the next: a relay that may not claim, because
        the broker is away, has to rest."""
        if self._at is not None and self._at <= now:
            self._at = None
