"""A fleet in simulated time: members, slots, turns and check-ins, driven by a heap of events.

A check-in reads the table and writes it a few milliseconds later, without a lock, so that members
that look at the same moment do not see each other. A slot is taken by one member only: its column
is unique. `scenarios.py` tells what happens to the fleet.
"""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from benchmarks.fleet.policies import Turns
from celery_outbox_steps.fleet import MEMBERSHIP, REFRESH, TOLD, TURN

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from benchmarks.fleet.policies import Policy

CHECK_IN = (0.002, 0.010)
"""Seconds from the read to the write of a check-in."""
MESSAGE = (0.005, 0.050)
"""Seconds until a remote-control message makes a standby look."""


class Simulation:
    """One database, its fleet, and what was observed."""

    def __init__(
        self, policy: Policy, random: Random, *, relays: int = 2, tells: bool = False
    ) -> None:
        self.policy, self.random, self.relays, self.tells = policy, random, relays, tells
        self.now = 0.0
        self.looks: list[float] = []
        """When a standby looked for a slot."""
        self.fills: list[tuple[float, float]] = []
        """Since when a slot was without a member at work, and when it had one again."""
        self.turns = Turns()
        self._holders: dict[int, float] = {}  # member → when its membership runs out
        self._vacant_since = [0.0] * relays
        self._alive: set[int] = set()
        self._names = count()
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    # What a scenario does.

    def at(self, when: float, action: Callable[[], None]) -> None:
        heappush(self._events, (when, next(self._order), action))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.step()
        self.now = until

    def step(self) -> None:
        """Let the next event happen."""
        self.now, _, action = heappop(self._events)
        action()

    def settle(self, members: int) -> None:
        """So many members that have been there for long: the first ones hold the slots."""
        for _ in range(min(self.relays, members)):
            self._take_slot(self._new())
        self.fills.clear()
        standbys = max(0, members - self.relays)
        for turn in self.policy.settled(standbys, self.random):
            self._stand_by(self._new(), turn, seen=turn - standbys * TURN)

    def start(self) -> int:
        """A worker starts, and looks at once."""
        member = self._new()
        self.turns.put(member, self.now + TURN, self.now)  # its row, until it knows its turn
        self._look(member)
        return member

    def stop(self, member: int) -> None:
        """A worker checks out."""
        self._alive.discard(member)
        self.turns.remove(member)
        if self._holders.pop(member, None) is not None:
            self._vacant_since.append(self.now)
            self._tell()

    def kill(self, member: int) -> None:
        """A worker dies: its row stays."""
        self._alive.discard(member)
        if member in self._holders:
            self._vacant_since.append(self.now)

    def holders(self) -> list[int]:
        """The members that hold a slot and work."""
        return [member for member in self._holders if member in self._alive]

    def standbys(self) -> list[int]:
        return [member for member in self.turns.members() if member in self._alive]

    # What the members do.

    def _new(self) -> int:
        member = next(self._names)
        self._alive.add(member)
        return member

    def _look(self, member: int) -> None:
        if member not in self._alive or member in self._holders:
            return
        self.looks.append(self.now)
        turn = self.policy.next_turn(self.turns, member, self.now, self.random)
        self.at(self.now + self.random.uniform(*CHECK_IN), lambda: self._write(member, turn))

    def _write(self, member: int, turn: float) -> None:
        if member not in self._alive or member in self._holders:
            return
        if self._free_slots():
            self._take_slot(member)
        else:
            self._stand_by(member, turn, seen=self.now)

    def _free_slots(self) -> int:
        held = sum(expires > self.now for expires in self._holders.values())
        return self.relays - held

    def _take_slot(self, member: int) -> None:
        self.turns.remove(member)
        for dead in [each for each, expires in self._holders.items() if expires <= self.now]:
            del self._holders[dead]
        self.fills.append((self._vacant_since.pop(0), self.now))
        self._refresh(member)

    def _refresh(self, member: int) -> None:
        if member not in self._alive:
            return
        self._holders[member] = self.now + MEMBERSHIP
        self.at(self.now + REFRESH, lambda: self._refresh(member))

    def _stand_by(self, member: int, turn: float, seen: float) -> None:
        self.turns.put(member, turn, seen)
        self.at(turn, lambda: self._come(member, turn))

    def _come(self, member: int, turn: float) -> None:
        if self.turns.of(member) == turn:  # else it was told to look earlier
            self._look(member)

    def _tell(self) -> None:
        """A holder that stops tells those that stand by and checked in last: its slot is free."""
        if self.tells:
            for member in self.turns.members()[-TOLD:]:
                arrival = self.now + self.random.uniform(*MESSAGE)
                self.at(arrival, partial(self._look, member))
