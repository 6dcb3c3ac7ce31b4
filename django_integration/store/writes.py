"""Every write of a relay, and the fence around it: only rows that the relay holds are changed.

What the broker has is settled also where the claim was forgotten (a crash of the server) or given
back, but never under the claim of another relay. Outcomes that are alike share a statement.
"""

# ruff: noqa: S608  SQL text is joined from names of ours; values are always parameters
from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_outbox_steps.messages import (
    CONTENTS,
    ClaimedMessage,
    Dead,
    Deferred,
    Outcome,
    Published,
    Retry,
)
from celery_outbox_steps.store import INTERRUPTED, ORPHANED
from django_integration.store.dialect import (
    DEAD_LETTER,
    OUTBOX,
    UNLEASED,
    Dialect,
    content_columns,
    with_contents,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django_integration.store.session import Session

MINE = "claimed_by = %s"
UNLESS_ANOTHERS = f"({MINE} OR claimed_by IS NULL OR claimed_by = '') AND due_at IS NOT NULL"
"""For what the broker has. A row that is kept after it was published has no due time."""


class Writes:
    """A relay's writes on one session. `keep`: published rows stay for the retention time."""

    def __init__(self, session: Session, dialect: Dialect, *, keep: bool) -> None:
        self._session = session
        self._dialect = dialect
        self._keep = keep

    def settle(self, outcomes: Sequence[Outcome], relay_id: str) -> int:
        """Write all outcomes or none; how many rows were within the fence."""
        work = _Work(outcomes)
        if work.only_published and not self._keep:
            return self._publish(work, relay_id)
        with self._session.transaction():
            return self._settle(work, relay_id)

    def begin_attempt(self, message: ClaimedMessage, relay_id: str) -> ClaimedMessage | None:
        """Count an attempt, and only then load what may be too large for this process."""
        changes = f"retries = %s, last_error = %s, updated_at = {self._dialect.now}"
        values = [message.retries + 1, INTERRUPTED]
        if not self.update(changes, values, [message.id], relay_id):
            return None
        return self._load(message, relay_id) if message.oversized else message

    def update(
        self, changes: str, values: list[Any], ids: Sequence[int], relay_id: str, fence: str = MINE
    ) -> int:
        """The one way a relay changes rows."""
        if not ids:
            return 0
        which, params = self._dialect.ids(ids)
        table = f"{OUTBOX}{self._dialect.by_id}"
        sql = f"UPDATE {table} SET {changes} WHERE {which} AND {fence}"
        return self._session.run(sql, [*values, *params, relay_id])

    def _delete(self, ids: Sequence[int], relay_id: str, fence: str = MINE) -> int:
        """The one way a relay deletes rows."""
        if not ids:
            return 0
        sql, params = self._dialect.delete(OUTBOX, ids)
        return self._session.run(f"{sql} AND {fence}", [*params, relay_id])

    def _load(self, message: ClaimedMessage, relay_id: str) -> ClaimedMessage | None:
        rows = self._session.rows(
            f"SELECT {', '.join(CONTENTS)} FROM {OUTBOX} WHERE id = %s AND {MINE}",
            [message.id, relay_id],
        )
        return with_contents(message, rows[0]) if rows else None

    def _settle(self, work: _Work, relay_id: str) -> int:
        settled = self._publish(work, relay_id)
        for postponed, ids in work.again.items():
            settled += self._postpone(ids, postponed, relay_id)
        for (error, attempts), ids in work.dead.items():
            settled += self._bury(ids, error, attempts, relay_id)
        return settled

    def _publish(self, work: _Work, relay_id: str) -> int:
        if not self._keep:
            every = [row_id for ids in work.published.values() for row_id in ids]
            return self._delete(every, relay_id, UNLESS_ANOTHERS)
        now = self._dialect.now
        changes = (
            f"published_at = {now}, updated_at = {now}, due_at = NULL, {UNLEASED},"
            " retries = %s, last_error = NULL"  # this attempt did not fail, though it was begun
        )
        return sum(
            self.update(changes, [retries], ids, relay_id, UNLESS_ANOTHERS)
            for retries, ids in work.published.items()
        )

    def _postpone(self, ids: Sequence[int], postponed: _Postponed, relay_id: str) -> int:
        error, delay, retries, holder = postponed
        return self.update(
            f"retries = %s, due_at = {self._dialect.later}, last_error = %s,"
            f" updated_at = {self._dialect.now}, claimed_by = %s, claimed_until = NULL",
            [retries, delay, self._dialect.text(error), holder],
            ids,
            relay_id,
        )

    def _bury(self, ids: Sequence[int], error: str, attempts: int, relay_id: str) -> int:
        """Copy and delete. The copy locks the rows, so nobody takes them over in between."""
        which, params = self._dialect.ids(ids)
        columns = ", ".join(name for name in content_columns() if name != "retries")
        self._session.run(
            f"INSERT INTO {DEAD_LETTER} ({columns}, retries, dead_at, failure_reason)"
            f" SELECT {columns}, %s, {self._dialect.now}, %s FROM {OUTBOX}{self._dialect.by_id}"
            f" WHERE {which} AND {MINE}{self._dialect.for_update}",
            [attempts, self._dialect.text(error), *params, relay_id],
        )
        return self._delete(ids, relay_id)


class _Postponed(NamedTuple):
    """What is written for a row that is tried again."""

    error: str
    delay: float
    retries: int
    holder: str | None
    """What is left in `claimed_by`."""


class _Work:
    """Outcomes by what has to be written for them, so that equal ones share a statement."""

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self.published: dict[int, list[int]] = defaultdict(list)
        """By failed attempts."""
        self.again: dict[_Postponed, list[int]] = defaultdict(list)
        self.dead: dict[tuple[str, int], list[int]] = defaultdict(list)
        """By error and failed attempts."""
        for outcome in outcomes:
            self._sort(outcome)

    @property
    def only_published(self) -> bool:
        return not self.again and not self.dead

    def _sort(self, outcome: Outcome) -> None:
        match outcome:
            case Published(message):
                self.published[message.retries].append(message.id)
            case Retry(message, error, delay):
                postponed = _Postponed(error, delay, message.retries + 1, None)
                self.again[postponed].append(message.id)
            case Deferred(message, error, delay):
                holder = ORPHANED if message.orphaned else None
                postponed = _Postponed(error, delay, message.retries, holder)
                self.again[postponed].append(message.id)
            case Dead(message, error, attempts):
                self.dead[error, attempts].append(message.id)
