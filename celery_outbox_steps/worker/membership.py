"""One relay's place in the fleet: whether it works or stands by, and when it checks in again.

A relay that can't work for long (its broker is away, it fails in a loop, it was paused alone) gives
its slot to one that can, if there is one. Time is an argument, and the only I/O is
`Store.check_in`. Used by the relay's thread. The next step of the path is
`celery_outbox_steps.fleet`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from celery_outbox_steps.fleet import MEMBERSHIP, Place

if TYPE_CHECKING:
    from celery_outbox_steps.fleet import Member
    from celery_outbox_steps.store import RelayStore

PATIENCE = MEMBERSHIP
"""Seconds for which a relay that can't work keeps its slot: as long as a dead one would."""


@dataclass(frozen=True, slots=True)
class Ability:
    """Whether a relay could work if it had a slot."""

    able: bool
    is_paused: bool = False
    """Paused by itself, until it is resumed: there is no point in being patient."""


class Membership:
    """Decides when to check in, and whether to ask for a slot."""

    def __init__(self, store: RelayStore, relays: int | None) -> None:
        self.place = Place(at_work=False, check_in_after=0.0)
        self.is_known = False
        """Whether this relay has checked in at least once."""
        self._store = store
        self._relays = relays
        self._due_at = float("-inf")
        self._unable_since: float | None = None
        self._gave_up = False

    def check_in_now(self) -> None:
        """Make the next check-in due. May be called from any thread."""
        self._due_at = float("-inf")

    def due_in(self, ability: Ability, now: float) -> float:
        """Seconds until the next check-in; 0 if it is due.

        Remembers since when the relay can't work. One that gave its slot up and can work again
        wants it back at once.
        """
        if not ability.able:
            self._unable_since = now if self._unable_since is None else self._unable_since
        else:
            self._unable_since = None
            if self._gave_up:
                self._gave_up = False
                self.check_in_now()
        return max(0.0, self._due_at - now)

    def check_in(self, member: Member, ability: Ability, now: float) -> Place:
        """Check in. After an error the next check-in is due no sooner than it would have been."""
        self._due_at = now + self.place.check_in_after
        wants_slot = self._wants_slot(ability, now)
        self._gave_up = not wants_slot and (self._gave_up or self.place.at_work)
        self.place = self._store.check_in(member, relays=self._relays, wants_slot=wants_slot)
        self.is_known = True
        self._due_at = now + self.place.check_in_after
        return self.place

    def _wants_slot(self, ability: Ability, now: float) -> bool:
        since = self._unable_since
        patient = since is None or now - since < PATIENCE
        nobody_else = self.place.at_work and not self.place.standbys
        return nobody_else or (patient and not ability.is_paused)


@lru_cache(maxsize=1)
def package_version() -> str:
    """The version of this package; empty if it was copied instead of installed."""
    try:
        return version("celery-outbox-steps")
    except PackageNotFoundError:
        return ""
