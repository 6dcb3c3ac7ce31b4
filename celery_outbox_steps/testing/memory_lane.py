"""Claim and settle in memory: the rows of one lane of a `MemoryStore`, and those for destinations.

The same contract as on a database, `celery_outbox_steps.store.LaneStore`. Every lane of a store and
of the stores beside it works on the same `MemoryTables`, under one lock.
"""

from __future__ import annotations

import itertools
import sys
import threading
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from celery_outbox_steps.envelope import size_of
from celery_outbox_steps.messages import (
    CONTENTS,
    ClaimedMessage,
    Dead,
    Deferred,
    Expired,
    Outcome,
    Published,
    Retry,
)
from celery_outbox_steps.rates import Budget, take_turns
from celery_outbox_steps.store import INTERRUPTED, MESSAGE, ORPHANED, TASK, Sample, how_many_fit
from celery_outbox_steps.testing.memory_fleet import MemoryFleet
from celery_outbox_steps.testing.memory_rows import (
    MemoryDeadLetter,
    MemoryRow,
    claimed_message,
    clear_lease,
    counted_by_state,
    is_due,
    is_free,
    may_settle,
    seconds_held,
    seconds_overdue,
    state_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from celery_outbox_steps.fleet import Pause
    from celery_outbox_steps.rates import Rate


class MemoryRate(NamedTuple):
    """What was used and planned of a release rate, by the clock."""

    per_second: float
    used_until: float
    planned_until: float


@dataclass(slots=True)
class MemoryTables:
    """What the stores on one outbox share."""

    clock: Callable[[], float]
    rows: dict[int, MemoryRow] = field(default_factory=dict)
    dead_letters: dict[int, MemoryDeadLetter] = field(default_factory=dict)
    rates: dict[str, MemoryRate] = field(default_factory=dict)
    fleet: MemoryFleet = field(init=False)
    lock: threading.RLock = field(default_factory=threading.RLock)
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.fleet = MemoryFleet(self.clock)

    def add_dead_letter(self, row: MemoryRow, reason: str, kind: str) -> int:
        letter = MemoryDeadLetter(next(self.ids), row, self.clock(), reason, kind)
        self.dead_letters[letter.id] = letter
        return letter.id


class MemoryLane:
    """The rows for one destination; None: for the app's own broker."""

    name = "memory"

    def __init__(
        self, tables: MemoryTables, destination: str | None = None, retention: float | None = None
    ) -> None:
        self.retention = retention
        self._tables = tables
        self._destination = destination
        self._clock = tables.clock
        self._lock = tables.lock

    def claim(
        self,
        limit: int,
        lease: float,
        relay_id: str,
        *,
        max_bytes: int | None = None,
        adopt: bool = False,
        orphans: bool = True,
        in_hand: Collection[int] = (),
    ) -> list[ClaimedMessage]:
        with self._lock:
            now, budget = self._clock(), sys.maxsize if max_bytes is None else max_bytes
            before = {row.id for row in self._held(list(in_hand), relay_id)}
            claimed: list[MemoryRow] = []
            while not claimed:
                due = self._due(now, relay_id, adopt=adopt, orphans=orphans)[:limit]
                due = due[: how_many_fit(map(size_of, due), budget)]
                if not due:
                    break
                ours = before | {row.id for row in due}
                claimed = [row for row in due if not self._has_to_wait(row, ours)]
                for row in due:
                    row.held_back = row not in claimed
            messages = [claimed_message(row, now, relay_id, budget) for row in claimed]
            for row in claimed:
                row.claimed_by, row.claimed_until = relay_id, now + lease
            return messages

    def begin_attempt(self, message: ClaimedMessage, relay_id: str) -> ClaimedMessage | None:
        with self._lock:
            for row in self._held([message.id], relay_id):
                row.retries, row.last_error = message.retries + 1, INTERRUPTED
                row.updated_at = self._clock()
                return message._replace(**{name: getattr(row, name) for name in CONTENTS})
            return None

    def settle(self, outcomes: Sequence[Outcome], relay_id: str) -> int:
        with self._lock:
            return sum(not self._write_outcome(outcome, relay_id) for outcome in outcomes)

    def release(self, ids: Sequence[int], relay_id: str) -> int:
        with self._lock:
            held = self._held(ids, relay_id)
            for row in held:
                clear_lease(row)
            return len(held)

    def renew(self, ids: Sequence[int], lease: float, relay_id: str) -> list[int]:
        with self._lock:
            held = self._held(ids, relay_id)
            for row in held:
                row.claimed_until = self._clock() + lease
            return [row.id for row in held]

    def pace(self, rate: Rate, rows: Sequence[ClaimedMessage], relay_id: str) -> set[int]:
        with self._lock:
            now, ids = self._clock(), [row.id for row in rows]
            had_turns = {row.id for row in self._held(ids, relay_id) if row.paced}
            in_order = sorted(ids, key=lambda each: each not in had_turns)
            new = MemoryRate(rate.per_second, *(now + each for each in Budget()))
            _, *until = self._tables.rates.get(rate.pattern, new)
            budget = Budget(*(each - now for each in until))
            turns = take_turns(rate, budget, len(ids) - len(had_turns), len(had_turns))
            after = (now + each for each in turns.budget)
            self._tables.rates[rate.pattern] = MemoryRate(rate.per_second, *after)
            orphaned = {row.id for row in rows if row.orphaned}
            for row_id, delay in zip(in_order[turns.granted :], turns.delays, strict=True):
                for row in self._held([row_id], relay_id):
                    row.due_at, row.paced = now + delay, True
                    clear_lease(row)
                    row.claimed_by = ORPHANED if row_id in orphaned else None
            return set(in_order[: turns.granted])

    def seconds_to_wait(self, timeout: float) -> float:
        with self._lock:
            return min([timeout, *self._seconds_ahead()])

    def look_again(self) -> None:
        """It always looks."""

    def sample(self) -> Sample:
        with self._lock:
            pending, now = self._pending(), self._clock()
            late = [row for row in pending if state_of(row, now) not in ("scheduled", "held_back")]
            letters = self._letters()
            return Sample(
                **counted_by_state(pending, now),
                depth=len(late),
                dead_letters=len(letters),
                failed_tasks=sum(letter.kind == TASK for letter in letters),
                oldest_pending_seconds=self._age(late),
                oldest_due_seconds=seconds_overdue(pending, now),
            )

    def close(self) -> None:
        """Nothing to close: the rows stay."""

    def _seconds_ahead(self) -> list[float]:
        now = self._clock()
        return [due - now for row in self._pending() if (due := row.due_at or now) > now]

    def _write_outcome(self, outcome: Outcome, relay_id: str) -> bool:
        row = self._tables.rows.get(outcome.message.id)
        if row is None or not may_settle(row, outcome, relay_id):
            return False
        match outcome:
            case Published(message):
                self._write_published(row, message.retries)
            case Retry(message, error, delay):
                self._postpone(row, error, delay, message.retries + 1)
            case Deferred(message, error, delay):
                self._postpone(row, error, delay, message.retries)
                row.claimed_by = ORPHANED if message.orphaned else None
            case Dead(_, error, attempts):
                row.retries = attempts
                del self._tables.rows[row.id]
                self._tables.add_dead_letter(row, error, MESSAGE)
            case Expired():
                del self._tables.rows[row.id]
        self._release_key(row.order_key)
        return True

    def _write_published(self, row: MemoryRow, retries: int) -> None:
        if self.retention is None:
            del self._tables.rows[row.id]
            return
        row.published_at = row.updated_at = self._clock()
        row.due_at = row.last_error = None
        row.retries = retries
        clear_lease(row)

    def _postpone(self, row: MemoryRow, error: str, delay: float, retries: int) -> None:
        row.retries = retries
        row.updated_at = self._clock()
        row.due_at = row.updated_at + delay
        row.last_error = error
        clear_lease(row)

    def _has_to_wait(self, row: MemoryRow, ours: Collection[int]) -> bool:
        """Whether a message that is neither published nor `ours` has the key, and comes before."""
        if row.order_key is None:
            return False
        others = [*self._pending(), *(letter.row for letter in self._letters())]
        return any(
            each.order_key == row.order_key and each.id < row.id and each.id not in ours
            for each in others
        )

    def _release_key(self, key: str | None) -> None:
        """Claims decide anew: this is for those who look at the states of the rows."""
        for row in self._pending() if key is not None else ():
            if row.order_key == key and not self._has_to_wait(row, ()):
                row.held_back = False

    def _held(self, ids: Sequence[int], relay_id: str) -> list[MemoryRow]:
        """The fence: of these rows, the ones that this relay still holds."""
        found = (self._tables.rows.get(row_id) for row_id in ids)
        return [row for row in found if row is not None and row.claimed_by == relay_id]

    def _due(self, now: float, relay_id: str, *, adopt: bool, orphans: bool) -> list[MemoryRow]:
        due = [
            row
            for row in self._pending()
            if is_due(row, now)
            and is_free(row, now, relay_id, adopt=adopt, orphans=orphans)
            and not (row.held_back and self._has_to_wait(row, ()))
        ]
        return sorted(due, key=attrgetter("due_at", "id"))

    def _pending(self) -> list[MemoryRow]:
        rows = self._tables.rows.values()
        own = (row for row in rows if row.destination == self._destination)
        return [row for row in own if row.due_at is not None]

    def _letters(self) -> list[MemoryDeadLetter]:
        letters = self._tables.dead_letters.values()
        return [letter for letter in letters if letter.row.destination == self._destination]

    def _age(self, rows: list[MemoryRow]) -> float:
        now = self._clock()
        return max((now - row.created_at - seconds_held(row) for row in rows), default=0.0)


class MemoryDeliveries:
    """The messages for destinations. A `celery_outbox_steps.store.DeliveryStore`."""

    name = MemoryLane.name

    def __init__(self, tables: MemoryTables, retention: float | None) -> None:
        self._tables = tables
        self._retention = retention
        self._wake_event = threading.Event()

    def lane(self, destination: str) -> MemoryLane:
        return MemoryLane(self._tables, destination, self._retention)

    def wait(self, timeout: float) -> set[str] | None:
        woken = self._wake_event.wait(timeout)
        self._wake_event.clear()
        return None if woken else set()

    def wake(self, destination: str | None = None) -> None:  # noqa: ARG002  it wakes all
        self._wake_event.set()

    def pauses(self) -> dict[str, Pause]:
        with self._tables.lock:
            return self._tables.fleet.pauses()

    def close(self) -> None:
        """Nothing to close: the rows stay."""


def copy_of(tables: MemoryTables) -> tuple[list[MemoryRow], list[MemoryDeadLetter]]:
    """Copies of all rows and dead letters, as they are at one moment."""
    with tables.lock:
        letters = tables.dead_letters.values()
        return [replace(row) for row in tables.rows.values()], [replace(each) for each in letters]
