"""Where live rows begin in the due index: pure logic, time is an argument.

Deleted rows stay in the index until vacuum, and while some session holds an old snapshot they pile
up at its low end, where every claim begins. So a claim starts a little before the end of the last
one, and looks from the very beginning only as often as that costs about a twentieth of the time.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

COST = 20
"""A full look may come again after this many times its own duration: about 5 % of the time."""
REACH = 1000
"""A claim reaches back behind about so many claimed rows, for those that committed late."""


class Start(NamedTuple):
    """Where a claim begins: at most a second before `last`, and not before `earliest`."""

    last: Any
    earliest: Any


class Watermark:
    """The due times of the last claimed rows, and when to distrust them.

    Rows can appear far below: given back by a relay, left by a dead one, committed very late. A
    full look finds them, at the latest `COST` durations after the last one.
    """

    def __init__(self) -> None:
        self._last: Any = None
        self._next_look = 0.0
        self._recent: deque[tuple[Any, int]] = deque()
        self._rows = 0

    def start(self, now: float) -> Start | None:
        """Where the next claim begins. None: at the very beginning."""
        return None if self.may_look(now) else Start(self._last, self._recent[0][0])

    def may_look(self, now: float) -> bool:
        """Is a look from the very beginning cheap enough by now?"""
        return self._last is None or now >= self._next_look

    def looked(self, began: float, ended: float) -> None:
        """A look from the very beginning took from `began` to `ended`."""
        self._next_look = ended + COST * (ended - began)

    def claimed(self, first: Any, last: Any, rows: int) -> None:
        """A claim took so many rows, due from `first` to `last`."""
        if self._last is not None and last < self._last:
            self._forget()  # older rows were found, and more of them may follow
        self._last = last
        self._recent.append((first, rows))
        self._rows += rows
        while self._rows - self._recent[0][1] >= REACH:
            self._rows -= self._recent.popleft()[1]

    def _forget(self) -> None:
        self._recent.clear()
        self._rows = 0
