"""Who holds a slot, and when the other members look again: one check-in, on any table of members.

Members without a slot take turns, one per `TURN`. Each takes the first gap between the turns of the
others, not a place behind the last: after a deploy or a scale-down the members with the near turns
are gone, and a queue would leave nobody to look for a long time.

`check_in()` looks once, decides, and writes the member's own row. Members come at the same time, so
what it saw may be out of date: the table refuses a slot that another member holds, and that alone
decides. A Store brings the table, a `MemberTable`, and its clock; the rules are the same for all.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from celery_outbox_steps.fleet import (
    LONGEST_SILENCE,
    LONGEST_TURN,
    MEMBERSHIP,
    REFRESH,
    SILENCE,
    STANDING_BY,
    TURN,
    UNABLE_SECONDS,
    WAITING_FOR_BROKER,
    Member,
    Pause,
    Place,
    SeenMember,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

JITTER = 0.1
"""Turns are up to this part of `TURN` longer: members that came together come apart."""
GAP = 1.75 * TURN
"""Between two turns that are further apart there is room for another one."""
CLOSE = 0.05 * TURN
"""Members whose turn is closer than this come at the same time."""
LONGEST_MEMBERSHIP = MEMBERSHIP + 60.0
"""A slot holder whose membership lasts longer than this counts as dead: nobody wrote that.

A minute of margin, for a statement that waited for a lock and compares with the time it began."""
LONGEST_STANDBY = LONGEST_TURN + LONGEST_MEMBERSHIP
"""The same for a member without a slot."""


class Holder(NamedTuple):
    """A member that has a slot in the table, dead or alive."""

    relay_id: str
    is_alive: bool


@dataclass(frozen=True, slots=True)
class Look:
    """What a member sees when it checks in. Times in seconds, by the Store's clock."""

    is_known: bool
    """Whether the member has a row."""
    holders: Mapping[int, Holder]
    """By slot; the member itself is one of them if it has a slot."""
    silence: float | None
    """Since the last check-in of any member that has not stopped; None if there is none."""
    standbys: int
    """How many others are alive and stand by."""
    has_forgettable: bool
    """Whether members stopped or died so long ago that their rows are to be deleted."""
    pause: Pause | None

    @property
    def is_after_silence(self) -> bool:
        """Whether the member lived through a time in which nobody could check in.

        One that is new may come after the others have died.
        """
        silence = self.silence if self.is_known else None
        return silence is not None and SILENCE < silence < LONGEST_SILENCE


class Turns(NamedTuple):
    """When the other members without a slot come. Times in seconds, by the Store's clock."""

    first_gap: float
    """Until the first turn that no other follows within `GAP`; now counts as a turn."""
    crowd: int
    """How many came just now or come soon, within `CLOSE`: many started at the same time."""


class Entry(NamedTuple):
    """What a check-in writes besides the member itself. Times in seconds from now."""

    state: str
    slot: int | None
    turn: float | None
    expires: float


class MemberTable(Protocol):
    """The rows of the members, each statement by itself: no lock lasts from one to the next."""

    def look(self, relay_id: str) -> Look:
        """Read what this member needs to know."""

    def turns(self, relay_id: str) -> Turns:
        """Read when the other members come."""

    def end_silence(self, silence: float) -> None:
        """Prolong the memberships that did not end before the silence began, to `MEMBERSHIP`."""

    def add(self, member: Member, entry: Entry) -> None:
        """Add the member's row, unless it is there."""

    def write(self, member: Member, entry: Entry) -> bool:
        """Change the member's row. False if it has none, or if another row has the slot."""

    def vacate(self, slot: int, holder: str) -> None:
        """Take the slot from its holder, unless that one is alive by now."""

    def forget(self) -> None:
        """Delete the rows of members that ended `REMEMBERED` seconds ago, or would never end."""


def check_in(table: MemberTable, member: Member, relays: int | None, *, wants_slot: bool) -> Place:
    """The check-in of a Store, see `RelayStore.check_in`."""
    look = table.look(member.relay_id)
    if look.is_after_silence:
        table.end_silence(look.silence or 0.0)
        look = table.look(member.relay_id)
    if not look.is_known:
        table.add(member, _waiting(member, TURN, wants_slot=wants_slot))
    if _starts_work(table, look, member, relays, wants_slot=wants_slot):
        if look.has_forgettable:
            table.forget()
        return Place(True, REFRESH, look.standbys, look.pause)
    turn = next_turn(table.turns(member.relay_id))
    table.write(member, _waiting(member, turn, wants_slot=wants_slot))
    return Place(False, turn, look.standbys, look.pause)


def slots_for(look: Look, relay_id: str, relays: int) -> list[int]:
    """The slot that the member has, or those that no living member has, the lowest first."""
    holders = [look.holders.get(slot) for slot in range(relays)]
    own = [slot for slot, holder in enumerate(holders) if holder and holder.relay_id == relay_id]
    free = [slot for slot, holder in enumerate(holders) if not holder or not holder.is_alive]
    return own or free


def next_turn(turns: Turns) -> float:
    """Seconds until the member comes again. A crowd spreads: all of it saw the same gap."""
    place = 1 + random.randint(0, turns.crowd) + random.uniform(0, JITTER)  # noqa: S311  no secret
    return min(turns.first_gap + place * TURN, LONGEST_TURN)


def by_slot_and_name(seen: SeenMember) -> tuple[Any, ...]:
    """The order in which members are shown: at work, alive, gone; each by name."""
    return (
        seen.slot is None,
        seen.slot or 0,
        not seen.alive,
        seen.member.worker,
        seen.member.relay_id,
    )


def _starts_work(
    table: MemberTable, look: Look, member: Member, relays: int | None, *, wants_slot: bool
) -> bool:
    if relays is None:
        table.write(member, Entry(member.state, None, None, MEMBERSHIP))
        return True
    slots = slots_for(look, member.relay_id, relays) if wants_slot else []
    return any(_takes(table, look, member, slot) for slot in slots)


def _takes(table: MemberTable, look: Look, member: Member, slot: int) -> bool:
    holder = look.holders.get(slot)
    if holder is not None and holder.relay_id != member.relay_id:
        table.vacate(slot, holder.relay_id)
    return table.write(member, Entry(member.state, slot, None, MEMBERSHIP))


def _waiting(member: Member, turn: float, *, wants_slot: bool) -> Entry:
    state = STANDING_BY if wants_slot and not _has_no_broker(member) else member.state
    return Entry(state, None, turn, turn + MEMBERSHIP)


def _has_no_broker(member: Member) -> bool:
    """It may have a free slot, but none should be left to it. Connecting takes a moment."""
    unable_for = member.counters.get(UNABLE_SECONDS, 0)
    return member.state == WAITING_FOR_BROKER and unable_for >= REFRESH
