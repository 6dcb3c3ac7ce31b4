"""Where live rows begin in the due index: pure logic, time is an argument.

Deleted rows stay in the index until vacuum, and while some session holds an old snapshot they pile
up at its low end, where every claim begins. So a claim starts where the last one ended, and looks
from the very beginning only as often as that costs about a twentieth of the time.
"""

from __future__ import annotations

from typing import Any

COST = 20
"""A full look may come again after this many times its own duration: about 5 % of the time."""


class Watermark:
    """The due time of the last claimed row, and when to distrust it.

    Rows can appear below it: given back by a relay, left by a dead one, committed late. A full
    look finds them, at the latest `COST` durations after the last one.
    """

    def __init__(self) -> None:
        self._position: Any = None
        self._next_look = 0.0

    def start(self, now: float) -> Any | None:
        """Where the next claim begins. None: at the very beginning."""
        return None if self.may_look(now) else self._position

    def may_look(self, now: float) -> bool:
        """Is a look from the very beginning cheap enough by now?"""
        return self._position is None or now >= self._next_look

    def looked(self, began: float, ended: float) -> None:
        """A look from the very beginning took from `began` to `ended`."""
        self._next_look = ended + COST * (ended - began)

    def claimed(self, position: Any) -> None:
        """The last claim ended at this due time. Going back is right: more old rows may follow."""
        self._position = position
