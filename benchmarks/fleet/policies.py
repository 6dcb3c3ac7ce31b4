"""When a standby looks again: the rule that is in use, and those that it is compared with.

A policy sees what a member sees at its check-in, the table of turns, and answers with the time of
its next turn. `model.py` calls it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

from celery_outbox_steps import places
from celery_outbox_steps.fleet import TURN
from celery_outbox_steps.places import CLOSE, GAP, JITTER

if TYPE_CHECKING:
    from random import Random


class Turns:
    """The turns of all standbys, as the table has them: one per member.

    `first_gap` and `crowd` are those of `places.Turns`, found without reading the whole table.
    """

    def __init__(self) -> None:
        self._sorted: list[float] = []
        self._of: dict[int, float] = {}  # in the order of the last check-in
        self._seen: dict[int, float] = {}
        self._alone: list[float] = []
        """A heap of turns that none followed at some time: a gap, unless it was filled since."""

    def __len__(self) -> int:
        return len(self._of)

    def members(self) -> list[int]:
        """In the order of their last check-in."""
        return list(self._of)

    def of(self, member: int) -> float | None:
        return self._of.get(member)

    def put(self, member: int, turn: float, now: float) -> None:
        self.remove(member)
        self._of[member], self._seen[member] = turn, now
        self._insert(turn)

    def _insert(self, turn: float) -> None:
        insort(self._sorted, turn)
        place = bisect_left(self._sorted, turn)
        for each in self._sorted[max(0, place - 1) : place + 1]:
            if self._is_before_gap(each):
                heappush(self._alone, each)

    def remove(self, member: int) -> None:
        turn = self._of.pop(member, None)
        if turn is not None:
            self._drop(turn)

    def _drop(self, turn: float) -> None:
        place = bisect_left(self._sorted, turn)
        del self._sorted[place]
        if place:
            heappush(self._alone, self._sorted[place - 1])

    def last(self) -> float:
        return self._sorted[-1] if self._sorted else 0.0

    def others(self, member: int, now: float) -> places.Turns:
        """What this member sees of the others."""
        own = self._of.get(member)
        if own is not None:
            self._drop(own)
        found = places.Turns(self._first_gap(now) - now, self._crowd(member, now))
        if own is not None:
            self._insert(own)
        return found

    def _first_gap(self, now: float) -> float:
        if self._is_before_gap(now):
            return now
        while self._alone:
            turn = self._alone[0]
            if turn > now and self._is_before_gap(turn):
                return turn
            heappop(self._alone)
        return self.last()

    def _crowd(self, member: int, now: float) -> int:
        turns = self._sorted
        close = bisect_left(turns, now + CLOSE) - bisect_right(turns, now - CLOSE)
        for other in reversed(self._of):
            if now - self._seen[other] >= CLOSE:
                break
            close += other != member and abs(self._of[other] - now) >= CLOSE
        return close

    def _is_before_gap(self, moment: float) -> bool:
        place = bisect_right(self._sorted, moment)
        return place == len(self._sorted) or self._sorted[place] - moment > GAP


class Policy(Protocol):
    """Decides when a standby looks again."""

    name: str

    def next_turn(self, turns: Turns, member: int, now: float, random: Random) -> float: ...

    def settled(self, members: int, random: Random) -> list[float]:
        """The turns of so many standbys after a long time in which nothing happened."""


class FirstGap:
    """The first gap between the turns of the others: the rule of `celery_outbox_steps.places`."""

    name = "the first gap (this package)"

    def next_turn(self, turns: Turns, member: int, now: float, random: Random) -> float:
        places.random.seed(random.random())
        return now + places.next_turn(turns.others(member, now))

    def settled(self, members: int, random: Random) -> list[float]:
        return _one_after_another(members, random)


class LastTurn:
    """A second after the last turn of all."""

    name = "last in the queue"

    def next_turn(
        self,
        turns: Turns,
        member: int,  # noqa: ARG002
        now: float,
        random: Random,
    ) -> float:
        return max(now, turns.last()) + _jittered(random)

    def settled(self, members: int, random: Random) -> list[float]:
        return _one_after_another(members, random)


class Proportional:
    """A pause in proportion to the number of standbys, with jitter: half to one and a half."""

    name = "pause in proportion"

    def next_turn(
        self,
        turns: Turns,
        member: int,  # noqa: ARG002
        now: float,
        random: Random,
    ) -> float:
        return now + TURN * max(1, len(turns)) * random.uniform(0.5, 1.5)

    def settled(self, members: int, random: Random) -> list[float]:
        return [random.uniform(0, TURN * members) for _ in range(members)]


class EverySecond:
    """Every standby looks every second."""

    name = "everybody every second"

    def next_turn(
        self,
        turns: Turns,  # noqa: ARG002
        member: int,  # noqa: ARG002
        now: float,
        random: Random,
    ) -> float:
        return now + _jittered(random)

    def settled(self, members: int, random: Random) -> list[float]:
        return [random.uniform(0, TURN) for _ in range(members)]


def _one_after_another(members: int, random: Random) -> list[float]:
    turns = [TURN * place + _jittered(random) for place in range(members)]
    random.shuffle(turns)
    return turns


def _jittered(random: Random) -> float:
    return TURN * random.uniform(1, 1 + JITTER)
