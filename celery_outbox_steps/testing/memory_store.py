"""A Store without a database, for tests.

`MemoryStore` keeps the whole contract of `celery_outbox_steps.store`, including leases and fencing,
on a clock that the test may control; `celery_outbox_steps.testing.contract` is the suite that
checks it. `memory_lane.py` claims and settles, `memory_rows.py` has the rows, `memory_fleet.py` the
members of the fleet. Not meant for production: the rows are lost when the process ends.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.envelope import DELIVERY_VERSIONS
from celery_outbox_steps.rates import differ
from celery_outbox_steps.store import TASK, DeadLetter, DeadLetters, ScheduledCall, Stats
from celery_outbox_steps.testing.memory_lane import (
    MemoryDeliveries,
    MemoryLane,
    MemoryTables,
    copy_of,
)
from celery_outbox_steps.testing.memory_rows import (
    MemoryDeadLetter,
    MemoryRow,
    counted_by_state,
    dead_letter,
    is_leased,
    matches,
    scheduled_call,
    seconds_overdue,
    state_of,
    top_failing,
    waits_for_turn,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from typing_extensions import Self

    from celery_outbox_steps.fleet import Fleet, Member, Place
    from celery_outbox_steps.rates import Rate
    from celery_outbox_steps.testing.memory_fleet import MemoryMember


class MemoryStore(MemoryLane):
    """A Store in this process's memory. Tests may read `rows` and `dead_letters`."""

    listening = False
    blocks_event_loop = False

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        retention: float | None = None,
        tables: MemoryTables | None = None,
    ) -> None:
        super().__init__(tables or MemoryTables(clock), None, retention)
        self.deliveries: MemoryDeliveries | None = MemoryDeliveries(self._tables, retention)
        self._fleet = self._tables.fleet
        self._wake_event = threading.Event()

    @property
    def rows(self) -> dict[int, MemoryRow]:
        return self._tables.rows

    @property
    def dead_letters(self) -> dict[int, MemoryDeadLetter]:
        return self._tables.dead_letters

    def beside(self, *, retention: float | None = None) -> Self:
        """Another store on the same rows, as if another relay used the same table."""
        return type(self)(retention=retention, tables=self._tables)

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
            if columns.get("destination") is not None:
                columns.setdefault("schema_version", DELIVERY_VERSIONS[-1])
            row = MemoryRow(**{"id": next(self._tables.ids), "task_name": task_name, **columns})
            self.rows[row.id] = row
            return row.id

    def add_failed_task(self, task_name: str = "tests.task", **columns: Any) -> int:
        """Store a dead letter of a task that failed in a worker. Returns its id."""
        with self._lock:
            row = self.rows.pop(self.add(task_name, **columns))
            return self._tables.add_dead_letter(row, "ValueError: no", TASK)

    def snapshot(self) -> tuple[list[MemoryRow], list[MemoryDeadLetter]]:
        """Copies of all rows and dead letters, as they are at one moment."""
        return copy_of(self._tables)

    def check(self) -> None:
        """Nothing to check: memory is always ready."""

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

    def wait(self, timeout: float) -> bool:
        with self._lock:
            left = self._seconds_ahead()
        woken = self._wake_event.wait(min([timeout, *left]))
        self._wake_event.clear()
        return woken or min(left, default=timeout) < timeout

    def wake(self) -> None:
        self._wake_event.set()

    def stats(self, top: int = 10, destination: str | None = None) -> Stats:
        if destination is not None:
            return self._lane(destination)._stats(top)  # noqa: SLF001  the same class
        return self._stats(top)

    def destinations(self) -> list[str]:
        with self._lock:
            rows = self.rows.values()
            return sorted({row.destination for row in rows if row.destination is not None})

    def rates(self) -> dict[str, float]:
        with self._lock:
            now, found = self._clock(), self._tables.rates.items()
            return {name: max(0.0, rate.planned_until - now) for name, rate in found}

    def use_rates(self, rates: Collection[Rate]) -> int:
        with self._lock:
            known, now = self._tables.rates, self._clock()
            if not differ({name: rate.per_second for name, rate in known.items()}, rates):
                return 0
            known.clear()
            waiting = [row for row in self.rows.values() if waits_for_turn(row, now)]
            for row in waiting:
                row.due_at, row.paced = now, None
            return len(waiting)

    def fleet(self) -> Fleet:
        with self._lock:
            return self._fleet.read()

    def pause(self, reason: str, paused_by: str, destination: str = "") -> None:
        with self._lock:
            self._fleet.pause(reason, paused_by, destination)

    def resume(self, destination: str = "") -> bool:
        with self._lock:
            return self._fleet.resume(destination)

    def scheduled(
        self, task_name: str | None = None, limit: int = 1000, destination: str | None = None
    ) -> list[ScheduledCall]:
        with self._lock:
            now = self._clock()
            found = [
                row
                for row in self._all_pending()
                if state_of(row, now) == "scheduled"
                and (task_name is None or matches(row.task_name, task_name))
                and (destination is None or row.destination == destination)
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

    def _lane(self, destination: str) -> Self:
        """The same store, as if its rows were those for a destination."""
        lane = self.beside(retention=self.retention)
        lane._destination = destination  # noqa: SLF001  the same class
        return lane

    def _stats(self, top: int) -> Stats:
        with self._lock:
            pending, letters, now = self._pending(), self._letters(), self._clock()
            failing = [row for row in pending if row.retries]
            own = [row for row in self.rows.values() if row.destination == self._destination]
            return Stats(
                **counted_by_state(pending, now),
                failing=len(failing),
                dead_letters=len(letters),
                failed_tasks=sum(letter.kind == TASK for letter in letters),
                published=len(own) - len(pending),
                oldest_due_seconds=seconds_overdue(pending, now),
                capped=False,
                holders=self._holders(),
                top_failing=top_failing(failing, top),
            )

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
            and (which.destination is None or letter.row.destination == which.destination)
        ]

    def _move_to_outbox(self, letter: MemoryDeadLetter) -> None:
        del self.dead_letters[letter.id]
        now = self._clock()
        keeps_its_place = letter.row.destination is not None
        row = replace(
            letter.row,
            id=letter.row.id if keeps_its_place else next(self._tables.ids),
            retries=0,
            created_at=now,
            due_at=now,
            updated_at=None,
            last_error=None,
            claimed_by=None,
            claimed_until=None,
        )
        self.rows[row.id] = row

    def _all_pending(self) -> list[MemoryRow]:
        return [row for row in self.rows.values() if row.due_at is not None]

    def _unclaimed(self, task_ids: Sequence[str]) -> list[MemoryRow]:
        now = self._clock()
        rows = [row for row in self._all_pending() if row.task_id in task_ids]
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
