"""When a standby looks again: the rule that is in use, and those that it is compared with.

A policy sees what a member sees at its check-in, the table of turns, and answers with the time of
its next turn. `model.py` calls it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

from celery_outbox_steps.fleet import TURN
from celery_outbox_steps.places import GAP, JITTER

if TYPE_CHECKING:
    from random import Random


class Turns:
    """The turns of all standbys, as the table has them: one per member."""

    def __init__(self) -> None:
        self._sorted: list[float] = []
        self._of: dict[int, float] = {}
        self._left_alone: list[float] = []
        """A heap of turns that lost the one after them: a gap begins there, unless it is filled."""

    def __len__(self) -> int:
        return len(self._of)

    def members(self) -> list[int]:
        """In the order of their last check-in."""
        return list(self._of)

    def of(self, member: int) -> float | None:
        return self._of.get(member)

    def put(self, member: int, turn: float) -> None:
        self.remove(member)
        self._of[member] = turn
        insort(self._sorted, turn)

    def remove(self, member: int) -> None:
        turn = self._of.pop(member, None)
        if turn is None:
            return
        place = bisect_left(self._sorted, turn)
        del self._sorted[place]
        if place:
            heappush(self._left_alone, self._sorted[place - 1])

    def last(self) -> float:
        return self._sorted[-1] if self._sorted else 0.0

    def before_first_gap(self, now: float) -> float:
        """`MemberTable.first_gap`, as a time: of a large fleet without reading all of it."""
        if self._is_before_gap(now):
            return now
        while self._left_alone:
            turn = self._left_alone[0]
            if turn > now and self._is_before_gap(turn):
                return turn
            heappop(self._left_alone)
        return self.last()

    def _is_before_gap(self, moment: float) -> bool:
        place = bisect_right(self._sorted, moment)
        return place == len(self._sorted) or self._sorted[place] - moment > GAP


class Policy(Protocol):
    """Decides when a standby looks again."""

    name: str

    def next_turn(self, turns: Turns, now: float, random: Random) -> float: ...

    def settled(self, members: int, random: Random) -> list[float]:
        """The turns of so many standbys after a long time in which nothing happened."""


class FirstGap:
    """The first gap between the turns of the others: the rule of `celery_outbox_steps.places`."""

    name = "the first gap (this package)"

    def next_turn(self, turns: Turns, now: float, random: Random) -> float:
        return turns.before_first_gap(now) + _jittered(random)

    def settled(self, members: int, random: Random) -> list[float]:
        return _one_after_another(members, random)


class LastTurn:
    """A second after the last turn of all."""

    name = "last in the queue"

    def next_turn(self, turns: Turns, now: float, random: Random) -> float:
        return max(now, turns.last()) + _jittered(random)

    def settled(self, members: int, random: Random) -> list[float]:
        return _one_after_another(members, random)


class Proportional:
    """A pause in proportion to the number of standbys, with jitter: half to one and a half."""

    name = "pause in proportion"

    def next_turn(self, turns: Turns, now: float, random: Random) -> float:
        return now + TURN * max(1, len(turns)) * random.uniform(0.5, 1.5)

    def settled(self, members: int, random: Random) -> list[float]:
        return [random.uniform(0, TURN * members) for _ in range(members)]


class EverySecond:
    """Every standby looks every second."""

    name = "everybody every second"

    def next_turn(self, turns: Turns, now: float, random: Random) -> float:  # noqa: ARG002
        return now + _jittered(random)

    def settled(self, members: int, random: Random) -> list[float]:
        return [random.uniform(0, TURN) for _ in range(members)]


def _one_after_another(members: int, random: Random) -> list[float]:
    turns = [TURN * place + _jittered(random) for place in range(members)]
    random.shuffle(turns)
    return turns


def _jittered(random: Random) -> float:
    return TURN * random.uniform(1, 1 + JITTER)
