"""One relay's place in the fleet: whether it works or stands by, and when it checks in again.

A relay that can't work for long (its broker is away, it fails in a loop, it was paused alone) gives
its slot to one that can, if there is one. Used by the relay's thread, which passes the time in. The
next step of the path is `Store.check_in`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from celery_outbox_steps.fleet import (
    BACKING_OFF,
    MEMBERSHIP,
    RELAYING,
    STANDING_BY,
    UNABLE_SECONDS,
    Member,
    Place,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from celery_outbox_steps.observe.journal import Journal
    from celery_outbox_steps.store import RelayStore

    States = Callable[[], Mapping[str, Mapping[str, Any]]]

PATIENCE = MEMBERSHIP
"""Seconds for which a relay that can't work keeps its slot: as long as a dead one would."""
REST = MEMBERSHIP
"""Seconds for which a relay that failed at its work leaves its slot to others."""


@dataclass(frozen=True, slots=True)
class Ability:
    """Whether a relay can work; by default it can."""

    is_connected: bool = True
    """The worker's broker connection is up."""
    is_paused: bool = False
    """Paused by itself, until it is resumed: there is no point in being patient."""
    is_failing: bool = False
    """It fails in a loop, or the broker accepts nothing from it. Only work can show the end of it,
    so this counts for a relay at work."""


class Membership:
    """Decides when to check in, and whether to ask for a slot; reports what comes of it.

    `worker` is the worker's name; `announce` is told once, in a few words, what this relay will do.
    `destinations` returns what it does for destinations. They have brokers of their own: a relay
    that can't reach the app's is better for them than none.
    """

    def __init__(
        self,
        store: RelayStore,
        relays: int | None,
        journal: Journal,
        worker: str,
        announce: Callable[[str], None],
        *,
        destinations: States | None = None,
    ) -> None:
        self.place = Place(at_work=False, check_in_after=0.0)
        self.is_known = False
        """Whether this relay has checked in at least once."""
        self._store = store
        self._relays = relays
        self._journal = journal
        self._worker = worker
        self._announce = announce
        self._destinations = destinations
        self._due_at = float("-inf")
        self._is_asked = False
        self._unable_since: float | None = None
        self._gave_up = False
        self._rests_until = float("-inf")

    def check_in_now(self) -> None:
        """Make the next check-in due. May be called from any thread, also during a check-in."""
        self._is_asked = True

    def due_in(self, ability: Ability, now: float) -> float:
        """Seconds until the next check-in; 0 if it is due.

        Remembers since when the relay can't work. One that gave its slot up and can work again
        wants it back at once.
        """
        failing = ability.is_failing and self.place.at_work
        if failing or ability.is_paused or not ability.is_connected:
            self._unable_since = now if self._unable_since is None else self._unable_since
        else:
            self._unable_since = None
            if self._gave_up and now >= self._rests_until:
                self._gave_up = False
                self.check_in_now()
        return 0.0 if self._is_asked else max(0.0, self._due_at - now)

    def check_in(self, state: str, ability: Ability, now: float) -> None:
        """Check in. After an error the next check-in is due no sooner than it would have been."""
        before, self._due_at, self._is_asked = self.place, now + self.place.check_in_after, False
        wants_slot = self._wants_slot(ability, now)
        if state == RELAYING and not wants_slot:
            state = BACKING_OFF  # it rests
        if before.at_work and not wants_slot:
            rests = ability.is_failing or (self._works_elsewhere and not ability.is_connected)
            self._gave_up, self._rests_until = True, now + REST * rests
        self.place = self._store.check_in(
            self._introduction(state, now), relays=self._relays, wants_slot=wants_slot
        )
        self._due_at = now + self.place.check_in_after
        if (self.place.pause is None) != (before.pause is None):
            self._is_asked = True  # once more: what it has just told about itself is out of date
        is_first, self.is_known = not self.is_known, True
        with suppress(BaseException):  # log handlers and filters are the project's code
            self._report(before, STANDING_BY if wants_slot else state, is_first=is_first)

    def check_out(self) -> list[str]:
        """Leave the fleet. Returns the workers to tell, if a slot became free."""
        standbys = self._store.check_out(self._journal.relay_id)
        return standbys if self.place.at_work else []

    def _wants_slot(self, ability: Ability, now: float) -> bool:
        if self.place.at_work and not self.place.standbys:
            return True
        if ability.is_paused or now < self._rests_until:
            return False
        is_patient = self._unable_for(now) < PATIENCE
        return is_patient or (self._works_elsewhere and not self.place.at_work)

    @property
    def _works_elsewhere(self) -> bool:
        """Whether it is of use without the app's own broker."""
        return self._destinations is not None

    def _unable_for(self, now: float) -> float:
        return 0.0 if self._unable_since is None else now - self._unable_since

    def _introduction(self, state: str, now: float) -> Member:
        journal = self._journal
        return Member(
            relay_id=journal.relay_id,
            worker=self._worker,
            version=package_version(),
            state=state,
            rate=round(journal.rate(), 2),
            counters={**journal.counters, UNABLE_SECONDS: int(self._unable_for(now))},
            last_error=journal.last_error,
            destinations={} if self._destinations is None else self._destinations(),
        )

    def _report(self, before: Place, state: str, *, is_first: bool) -> None:
        """Log what has changed. `state` says what it does without a slot."""
        place = self.place
        if is_first:
            self._announce(_announcement(self._store.name, place))
        if is_first or place.at_work != before.at_work:
            self._journal.placed(state, at_work=place.at_work)
        if place.pause is not None and before.pause is None:
            self._journal.outbox_paused(place.pause)
        elif place.pause is None and before.pause is not None:
            self._journal.outbox_resumed()


def _announcement(database: str, place: Place) -> str:
    if place.pause is not None:
        return f"{database} is paused by {place.pause.paused_by}: {place.pause.reason}"
    return f"relaying {database}" if place.at_work else f"standing by for {database}"


@lru_cache(maxsize=1)
def package_version() -> str:
    """The version of this package; empty if it was copied instead of installed."""
    try:
        return version("celery-outbox-steps")
    except PackageNotFoundError:
        return ""
