"""The members and the pause of a `MemoryStore`: the table behind the rules of `places.py`.

Times are readings of the store's clock, and its lock makes each check-in one step. Tests may read
and edit `members`, as operators edit a table by hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from celery_outbox_steps import places
from celery_outbox_steps.fleet import (
    MEMBERSHIP,
    REMEMBERED,
    STANDING_BY,
    STOPPED,
    TOLD,
    Fleet,
    Member,
    Pause,
    SeenMember,
)
from celery_outbox_steps.places import (
    CLOSE,
    GAP,
    LONGEST_MEMBERSHIP,
    LONGEST_STANDBY,
    Entry,
    Holder,
    Look,
    Turns,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_outbox_steps.fleet import Place


@dataclass(slots=True)
class MemoryMember:
    """The row of one member."""

    member: Member
    state: str
    slot: int | None
    started_at: float
    seen_at: float
    expires_at: float
    turn_at: float | None

    def is_alive(self, now: float) -> bool:
        longest = LONGEST_STANDBY if self.slot is None else LONGEST_MEMBERSHIP
        return 0 < self.expires_at - now <= longest

    def is_forgettable(self, now: float) -> bool:
        return not -REMEMBERED <= self.expires_at - now <= LONGEST_STANDBY


class MemoryFleet:
    """A `celery_outbox_steps.places.MemberTable`. The store holds its lock around each call."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.members: dict[str, MemoryMember] = {}
        self._clock = clock
        self._paused: dict[str, tuple[str, str, float]] = {}

    def check_in(self, member: Member, relays: int | None, *, wants_slot: bool) -> Place:
        return places.check_in(self, member, relays, wants_slot=wants_slot)

    def check_out(self, relay_id: str) -> list[str]:
        row = self.members.get(relay_id)
        if row is not None:
            row.state, row.slot, row.turn_at = STOPPED, None, None
            row.seen_at = row.expires_at = self._clock()
        return [each.member.worker for each in self._standing_by()][:TOLD]

    def read(self) -> Fleet:
        """Every member, by slot and name, and the pause."""
        now = self._clock()
        seen = [
            SeenMember(
                member=replace(row.member, state=row.state, counters=dict(row.member.counters)),
                slot=row.slot,
                started_ago=now - row.started_at,
                seen_ago=now - row.seen_at,
                alive=row.is_alive(now),
            )
            for row in self.members.values()
        ]
        pauses = self.pauses()
        members = sorted(seen, key=places.by_slot_and_name)
        return Fleet(tuple(members), pauses.pop("", None), pauses)

    def pauses(self) -> dict[str, Pause]:
        """By destination; that of the whole outbox has no name."""
        now = self._clock()
        return {
            name: Pause(reason, paused_by, now - since)
            for name, (reason, paused_by, since) in self._paused.items()
        }

    def pause(self, reason: str, paused_by: str, destination: str = "") -> None:
        *_, since = self._paused.get(destination, (self._clock(),))
        self._paused[destination] = (reason, paused_by, since)

    def resume(self, destination: str = "") -> bool:
        return self._paused.pop(destination, None) is not None

    # -- what a check-in reads and writes ----------------------------------------------------------

    def look(self, relay_id: str) -> Look:
        now = self._clock()
        rows = self.members
        others = [row for name, row in rows.items() if name != relay_id and row.is_alive(now)]
        seen = [now - row.seen_at for row in rows.values() if row.state != STOPPED]
        return Look(
            is_known=relay_id in rows,
            holders={
                row.slot: Holder(name, row.is_alive(now))
                for name, row in rows.items()
                if row.slot is not None
            },
            silence=min((ago for ago in seen if ago >= 0), default=None),
            standbys=sum(row.state == STANDING_BY for row in others),
            has_forgettable=any(row.is_forgettable(now) for row in rows.values()),
            pause=self.pauses().get(""),
        )

    def turns(self, relay_id: str) -> Turns:
        now = self._clock()
        others = [row for name, row in self.members.items() if name != relay_id]
        times = [
            (row.turn_at - now, now - row.seen_at)
            for row in others
            if row.turn_at is not None and row.is_alive(now)
        ]
        ahead = [0.0, *sorted(turn for turn, _ in times if turn > 0)]
        pairs = zip(ahead, (*ahead[1:], math.inf), strict=True)
        first_gap = next(turn for turn, following in pairs if following > turn + GAP)
        return Turns(first_gap, sum(min(abs(turn), ago) < CLOSE for turn, ago in times))

    def end_silence(self, silence: float) -> None:
        now = self._clock()
        for row in self.members.values():
            if row.state != STOPPED and now - silence < row.expires_at < now + MEMBERSHIP:
                row.expires_at = now + MEMBERSHIP

    def add(self, member: Member, entry: Entry) -> None:
        now = self._clock()
        row = MemoryMember(member, entry.state, None, now, now, now + entry.expires, None)
        self.members.setdefault(member.relay_id, row)

    def write(self, member: Member, entry: Entry) -> bool:
        row, now = self.members.get(member.relay_id), self._clock()
        if row is None or self._is_taken(entry.slot, row):
            return False
        row.member, row.state, row.slot = member, entry.state, entry.slot
        row.seen_at, row.expires_at = now, now + entry.expires
        row.turn_at = None if entry.turn is None else now + entry.turn
        return True

    def vacate(self, slot: int, holder: str) -> None:
        row = self.members.get(holder)
        if row is not None and row.slot == slot and not row.is_alive(self._clock()):
            row.slot = None

    def forget(self) -> None:
        now = self._clock()
        for name in [name for name, row in self.members.items() if row.is_forgettable(now)]:
            del self.members[name]

    def _standing_by(self) -> list[MemoryMember]:
        """The last seen first."""
        now = self._clock()
        rows = [row for row in self.members.values() if row.state == STANDING_BY]
        alive = [row for row in rows if row.is_alive(now)]
        return sorted(alive, key=attrgetter("seen_at"), reverse=True)

    def _is_taken(self, slot: int | None, by_other_than: MemoryMember) -> bool:
        rows = self.members.values()
        return slot is not None and any(
            row.slot == slot for row in rows if row is not by_other_than
        )
