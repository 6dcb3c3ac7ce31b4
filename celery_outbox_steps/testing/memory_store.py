"""A Store without a database, for tests.

`MemoryStore` keeps the whole contract of `celery_outbox_steps.store`, including leases and fencing,
on a clock that the test may control; `celery_outbox_steps.testing.contract` is the suite that
checks it; `memory_rows.py` has the rows, `memory_fleet.py` the members of the fleet. Not meant for
production: the rows are lost when the process ends.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

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
from celery_outbox_steps.store import (
    INTERRUPTED,
    MESSAGE,
    ORPHANED,
    TASK,
    DeadLetter,
    DeadLetters,
    Sample,
    ScheduledCall,
    Stats,
    how_many_fit,
)
from celery_outbox_steps.testing.memory_fleet import MemoryFleet
from celery_outbox_steps.testing.memory_rows import (
    MemoryDeadLetter,
    MemoryRow,
    claimed_message,
    clear_lease,
    counted_by_state,
    dead_letter,
    is_due,
    is_free,
    is_leased,
    matches,
    may_settle,
    scheduled_call,
    seconds_held,
    seconds_overdue,
    state_of,
    top_failing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from celery_outbox_steps.fleet import Fleet, Member, Place
    from celery_outbox_steps.testing.memory_fleet import MemoryMember


class MemoryStore:
    """A Store in this process's memory. Tests may read `rows` and `dead_letters`."""

    name = "memory"
    listening = False
    blocks_event_loop = False

    def __init__(
        self, *, clock: Callable[[], float] = time.time, retention: float | None = None
    ) -> None:
        self.rows: dict[int, MemoryRow] = {}
        self.dead_letters: dict[int, MemoryDeadLetter] = {}
        self.retention = retention
        self._fleet = MemoryFleet(clock)
        self._clock = clock
        self._lock = threading.RLock()
        self._wake_event = threading.Event()
        self._ids = itertools.count(1)

    def beside(self, *, retention: float | None = None) -> Self:
        """Another store on the same rows, as if another relay used the same table."""
        other = type(self)(clock=self._clock, retention=retention)
        other.rows, other.dead_letters = self.rows, self.dead_letters
        other._fleet = self._fleet  # noqa: SLF001  the same class
        other._lock, other._ids = self._lock, self._ids  # noqa: SLF001  the same class
        return other

    def add(
        self,
        task_name: str = "tests.task",
        *,
        due_in: float = 0.0,
        held: bool = False,
        **columns: Any,
    ) -> int:
        """Store a row that is due in `due_in` seconds, `held` as with an eta. Returns its id."""
        with self._lock:
            now = self._clock()
            eta = now + due_in if held else None
            columns = {"created_at": now, "due_at": now + due_in, "eta": eta, **columns}
            row = MemoryRow(**{"id": next(self._ids), "task_name": task_name, **columns})
            self.rows[row.id] = row
            return row.id

    def add_failed_task(self, task_name: str = "tests.task", **columns: Any) -> int:
        """Store a dead letter of a task that failed in a worker. Returns its id."""
        with self._lock:
            row = self.rows.pop(self.add(task_name, **columns))
            return self._add_dead_letter(row, "ValueError: no", TASK)

    def snapshot(self) -> tuple[list[MemoryRow], list[MemoryDeadLetter]]:
        """Copies of all rows and dead letters, as they are at one moment."""
        with self._lock:
            letters = self.dead_letters.values()
            return [replace(row) for row in self.rows.values()], [replace(each) for each in letters]

    def check(self) -> None:
        """Nothing to check: memory is always ready."""

    def claim(
        self,
        limit: int,
        lease: float,
        relay_id: str,
        *,
        max_bytes: int | None = None,
        adopt: bool = False,
        orphans: bool = True,
    ) -> list[ClaimedMessage]:
        with self._lock:
            now, budget = self._clock(), sys.maxsize if max_bytes is None else max_bytes
            due = self._due(now, relay_id, adopt=adopt, orphans=orphans)[:limit]
            fitting = due[: how_many_fit(map(size_of, due), budget)]
            messages = [claimed_message(row, now, relay_id, budget) for row in fitting]
            for row in fitting:
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

    @property
    def members(self) -> dict[str, MemoryMember]:
        """The rows of the fleet's members, by relay id."""
        return self._fleet.members

    def check_in(self, member: Member, *, relays: int | None, wants_slot: bool) -> Place:
        with self._lock:
            return self._fleet.check_in(member, relays, wants_slot=wants_slot)

    def check_out(self, relay_id: str) -> list[str]:
        with self._lock:
            return self._fleet.check_out(relay_id)

    def renew(self, ids: Sequence[int], lease: float, relay_id: str) -> list[int]:
        with self._lock:
            held = self._held(ids, relay_id)
            for row in held:
                row.claimed_until = self._clock() + lease
            return [row.id for row in held]

    def wait(self, timeout: float) -> bool:
        with self._lock:
            now = self._clock()
            left = [due - now for row in self.rows.values() if (due := row.due_at or now) > now]
        woken = self._wake_event.wait(min([timeout, *left]))
        self._wake_event.clear()
        return woken or min(left, default=timeout) < timeout

    def wake(self) -> None:
        self._wake_event.set()

    def sample(self) -> Sample:
        with self._lock:
            pending, now = self._pending(), self._clock()
            late = [row for row in pending if state_of(row, now) != "scheduled"]
            return Sample(
                **counted_by_state(pending, now),
                depth=len(late),
                dead_letters=len(self.dead_letters),
                failed_tasks=len(self._selected(DeadLetters(kind=TASK))),
                oldest_pending_seconds=self._age(late),
                oldest_due_seconds=seconds_overdue(pending, now),
            )

    def stats(self, top: int = 10) -> Stats:
        with self._lock:
            pending, now = self._pending(), self._clock()
            failing = [row for row in pending if row.retries]
            return Stats(
                **counted_by_state(pending, now),
                failing=len(failing),
                dead_letters=len(self.dead_letters),
                failed_tasks=len(self._selected(DeadLetters(kind=TASK))),
                published=len(self.rows) - len(pending),
                oldest_due_seconds=seconds_overdue(pending, now),
                capped=False,
                holders=self._holders(),
                top_failing=top_failing(failing, top),
            )

    def fleet(self) -> Fleet:
        with self._lock:
            return self._fleet.read()

    def pause(self, reason: str, paused_by: str) -> None:
        with self._lock:
            self._fleet.pause(reason, paused_by)

    def resume(self) -> bool:
        with self._lock:
            return self._fleet.resume()

    def scheduled(self, task_name: str | None = None, limit: int = 1000) -> list[ScheduledCall]:
        with self._lock:
            now = self._clock()
            found = [
                row
                for row in self._pending()
                if state_of(row, now) == "scheduled"
                and (task_name is None or matches(row.task_name, task_name))
            ]
            found.sort(key=attrgetter("due_at", "id"))
            return [scheduled_call(row, now) for row in found[:limit]]

    def cancel(self, task_ids: Sequence[str]) -> dict[str, bool]:
        with self._lock:
            cancelled: dict[str, bool] = {}
            for row in self._unclaimed(task_ids):
                untouched = row.claimed_by is None and row.updated_at is None
                cancelled[row.task_id] = untouched and cancelled.get(row.task_id, True)
                del self.rows[row.id]
            return cancelled

    def send_now(self, task_ids: Sequence[str]) -> list[str]:
        with self._lock:
            now, found = self._clock(), self._unclaimed(task_ids)
            for row in found:
                row.due_at = min(row.due_at or now, now)
                row.eta = None if row.eta is None else min(row.eta, row.due_at)
            return [row.task_id for row in found]

    def list_dead_letters(self, which: DeadLetters, limit: int = 1000) -> list[DeadLetter]:
        with self._lock:
            newest = self._selected(which)[::-1][:limit]
            return [dead_letter(letter, self._clock()) for letter in newest]

    def count_dead_letters(self, which: DeadLetters) -> int:
        with self._lock:
            return len(self._selected(which))

    def replay(self, which: DeadLetters, limit: int = 1000) -> int:
        with self._lock:
            selected = self._selected(which)[:limit]
            for letter in selected:
                self._move_to_outbox(letter)
            return len(selected)

    def purge_dead_letters(self, which: DeadLetters, limit: int = 1000) -> int:
        with self._lock:
            selected = self._selected(which)[:limit]
            for letter in selected:
                del self.dead_letters[letter.id]
            return len(selected)

    def count_published(self, older_than: float) -> int:
        with self._lock:
            return len(self._published(older_than))

    def count_expired_entries(self) -> int:
        """It has no inbox: that is a table beside the project's data."""
        return 0

    def purge_expired_entries(self, limit: int = 1000) -> int:  # noqa: ARG002  as the protocol has it
        return 0

    def purge_published(self, older_than: float, limit: int = 1000) -> int:
        with self._lock:
            old = self._published(older_than)[:limit]
            for row_id in old:
                del self.rows[row_id]
            return len(old)

    def close(self) -> None:
        """Nothing to close: the rows stay."""

    def _published(self, older_than: float) -> list[int]:
        before = self._clock() - older_than
        return [
            row.id
            for row in self.rows.values()
            if row.published_at is not None and row.published_at < before
        ]

    def _selected(self, which: DeadLetters) -> list[MemoryDeadLetter]:
        now = self._clock()
        return [
            letter
            for letter in self.dead_letters.values()
            if (which.ids is None or letter.id in which.ids)
            and (which.task_name is None or matches(letter.row.task_name, which.task_name))
            and (which.older_than is None or letter.dead_at < now - which.older_than)
            and (which.newer_than is None or letter.dead_at >= now - which.newer_than)
            and (which.kind is None or letter.kind == which.kind)
        ]

    def _write_outcome(self, outcome: Outcome, relay_id: str) -> bool:
        row = self.rows.get(outcome.message.id)
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
                del self.rows[row.id]
                self._add_dead_letter(row, error, MESSAGE)
            case Expired():
                del self.rows[row.id]
        return True

    def _write_published(self, row: MemoryRow, retries: int) -> None:
        if self.retention is None:
            del self.rows[row.id]
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

    def _add_dead_letter(self, row: MemoryRow, reason: str, kind: str) -> int:
        letter = MemoryDeadLetter(next(self._ids), row, self._clock(), reason, kind)
        self.dead_letters[letter.id] = letter
        return letter.id

    def _move_to_outbox(self, letter: MemoryDeadLetter) -> None:
        del self.dead_letters[letter.id]
        now = self._clock()
        row = replace(
            letter.row,
            id=next(self._ids),
            retries=0,
            created_at=now,
            due_at=now,
            updated_at=None,
            last_error=None,
            claimed_by=None,
            claimed_until=None,
        )
        self.rows[row.id] = row

    def _held(self, ids: Sequence[int], relay_id: str) -> list[MemoryRow]:
        """The fence: of these rows, the ones that this relay still holds."""
        found = (self.rows.get(row_id) for row_id in ids)
        return [row for row in found if row is not None and row.claimed_by == relay_id]

    def _due(self, now: float, relay_id: str, *, adopt: bool, orphans: bool) -> list[MemoryRow]:
        due = [
            row
            for row in self.rows.values()
            if is_due(row, now) and is_free(row, now, relay_id, adopt=adopt, orphans=orphans)
        ]
        return sorted(due, key=attrgetter("due_at", "id"))

    def _pending(self) -> list[MemoryRow]:
        return [row for row in self.rows.values() if row.due_at is not None]

    def _unclaimed(self, task_ids: Sequence[str]) -> list[MemoryRow]:
        now = self._clock()
        rows = [row for row in self._pending() if row.task_id in task_ids]
        return [row for row in rows if not is_leased(row, now)]

    def _in_flight(self) -> list[MemoryRow]:
        now = self._clock()
        return [row for row in self._pending() if is_leased(row, now)]

    def _holders(self) -> tuple[dict[str, Any], ...]:
        counts = Counter(row.claimed_by for row in self._in_flight())
        return tuple(
            {
                "relay": relay,
                "rows": rows,
                "seconds_left": min(
                    (row.claimed_until or 0) - self._clock()
                    for row in self._in_flight()
                    if row.claimed_by == relay
                ),
            }
            for relay, rows in counts.most_common()
        )

    def _age(self, rows: list[MemoryRow]) -> float:
        now = self._clock()
        return max((now - row.created_at - seconds_held(row) for row in rows), default=0.0)
