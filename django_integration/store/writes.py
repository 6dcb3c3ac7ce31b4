"""Every write of a relay, and the fence around it: only rows that the relay holds are changed.

A message that the broker has is settled even if its claim was lost (in a crash of the server) or
released, but never while another relay holds it. Equal outcomes share a statement. `lane.py` calls
it after each batch; `signals.py` reports the outcomes afterwards.
"""

# ruff: noqa: S608  SQL text is joined from our own names; values are always parameters
from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

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
from celery_outbox_steps.store import INTERRUPTED, ORPHANED
from django_integration.schema import (
    DEAD_LETTER,
    DELIVERIES,
    FAR,
    MESSAGE_COLUMNS,
    PENDING,
    TASKS,
    MessageTable,
)
from django_integration.store.dialect import Dialect, with_contents

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from django_integration.store.session import Session

TRUE = "(1 = 1)"
CLEAR_LEASE = "claimed_by = NULL, claimed_until = NULL"
OWN = "claimed_by = %s"
UNCLAIMED = f"claimed_by IS NULL OR claimed_by = '{ORPHANED}'"
MAY_BE_PUBLISHED = {
    TASKS: f"({OWN} OR ({UNCLAIMED}) AND outbox_key IS NULL) AND {PENDING.text}",
    DELIVERIES: f"({OWN} OR {UNCLAIMED}) AND {PENDING.text}",
}
"""The fence for published messages. A row that was published before, and kept, is not pending. An
unclaimed one with an `outbox_key` may be another call by now, which took the place of this one."""
DEAD_COLUMNS = {
    TASKS: {name: name for name in MESSAGE_COLUMNS if name != "retries"},
    DELIVERIES: {
        **{name: name for name in MESSAGE_COLUMNS if name != "retries"},
        "destination": "destination",
        "order_key": "order_key",
        "position": "id",
    },
}
"""What a dead letter takes over: its columns, and those of the row."""


class Writes:
    """A relay's writes on one session. `keep`: published rows stay for the retention time."""

    def __init__(
        self, session: Session, dialect: Dialect, table: MessageTable, *, keep: bool
    ) -> None:
        self._session = session
        self._dialect = dialect
        self._table = table
        self._name = f"{table.name}{dialect.primary_key_hint}"
        self._may_be_published = MAY_BE_PUBLISHED[table]
        self._keep = keep

    def record_outcomes(self, outcomes: Sequence[Outcome], relay_id: str) -> int:
        """Write all outcomes or none. Returns how many rows were within the fence."""
        groups = _grouped(outcomes)
        if not self._keep and groups.only_published:
            return self._delete_published(groups, relay_id)
        with self._session.transaction():
            publish = self._keep_published if self._keep else self._delete_published
            written = publish(groups, relay_id)
            for postponement, ids in groups.postponed.items():
                written += self._postpone(ids, postponement, relay_id)
            for (error, attempts), ids in groups.dead.items():
                written += self._move_to_dead_letters(ids, error, attempts, relay_id)
            return written + self._delete(groups.expired, relay_id)

    def count_attempt(self, message: ClaimedMessage, relay_id: str) -> ClaimedMessage | None:
        """Count an attempt, and only then load contents that may be too large for this process."""
        changes = f"retries = %s, last_error = %s, updated_at = {self._dialect.now}"
        values = [message.retries + 1, INTERRUPTED]
        if not self._update(changes, values, [message.id], relay_id):
            return None
        return self._read_contents(message, relay_id) if message.oversized else message

    def clear_leases(self, ids: Sequence[int], relay_id: str) -> int:
        return self._update(CLEAR_LEASE, [], ids, relay_id)

    def renew_leases(self, ids: Sequence[int], lease: float, relay_id: str) -> list[int]:
        """Which rows were renewed is read only if not all of them were: that is rare, and MySQL's
        UPDATE can't tell. A lease that was just renewed is not lost in between."""
        renewed = self._update(f"claimed_until = {self._dialect.from_now}", [lease], ids, relay_id)
        if renewed == len(ids):
            return list(ids)
        selected, params = self._dialect.id_in(ids)
        held = self._session.rows(
            f"SELECT id FROM {self._name} WHERE {selected} AND {OWN}",
            [*params, relay_id],
        )
        return [row_id for (row_id,) in held]

    def paced(self, ids: Sequence[int], relay_id: str) -> set[int]:
        """Those of the rows that have waited for a turn before."""
        if not ids:
            return set()
        selected, params = self._dialect.id_in(ids)
        found = self._session.rows(
            f"SELECT id FROM {self._name} WHERE {selected} AND {OWN} AND paced IS NOT NULL",
            [*params, relay_id],
        )
        return {row_id for (row_id,) in found}

    def postpone_turns(
        self, delays: Mapping[int, float], orphaned: Collection[int], relay_id: str
    ) -> None:
        """Give rows back until their turns. Orphaned ones stay that, as when they are deferred."""
        for claimed_by in (None, ORPHANED):
            turns = {
                each: delay
                for each, delay in delays.items()
                if (each in orphaned) is (claimed_by == ORPHANED)
            }
            delay_of_row = f"CASE id {'WHEN %s THEN %s ' * len(turns)}END"
            due_at = self._dialect.from_now.replace("%s", delay_of_row)
            values = [value for turn in turns.items() for value in turn]
            changes = f"due_at = {due_at}, paced = {TRUE}, claimed_by = %s, claimed_until = NULL"
            self._update(changes, [*values, claimed_by], list(turns), relay_id)

    def hold_back(self, rows: Sequence[ClaimedMessage], relay_id: str) -> None:
        """Give rows back that have to wait for others. Orphaned ones stay that."""
        far = FAR[self._dialect.vendor]
        for claimed_by in (None, ORPHANED):
            ids = [row.id for row in rows if row.orphaned is (claimed_by == ORPHANED)]
            changes = f"due_at = {far}, claimed_by = %s, claimed_until = NULL"
            self._update(changes, [claimed_by], ids, relay_id)

    def _update(
        self, changes: str, values: list[Any], ids: Sequence[int], relay_id: str, fence: str = OWN
    ) -> int:
        """The only UPDATE of rows that a relay holds."""
        if not ids:
            return 0
        selected, params = self._dialect.id_in(ids)
        sql = f"UPDATE {self._name} SET {changes} WHERE {selected} AND {fence}"
        return self._session.run(sql, [*values, *params, relay_id])

    def _delete(self, ids: Sequence[int], relay_id: str, fence: str = OWN) -> int:
        """The only DELETE of rows that a relay holds."""
        if not ids:
            return 0
        sql, params = self._dialect.delete_by_id(self._table.name, ids)
        return self._session.run(f"{sql} AND {fence}", [*params, relay_id])

    def _read_contents(self, message: ClaimedMessage, relay_id: str) -> ClaimedMessage | None:
        rows = self._session.rows(
            f"SELECT {', '.join(CONTENTS)} FROM {self._table.name} WHERE id = %s AND {OWN}",
            [message.id, relay_id],
        )
        return with_contents(message, rows[0]) if rows else None

    def _delete_published(self, groups: _Groups, relay_id: str) -> int:
        all_ids = [row_id for ids in groups.published.values() for row_id in ids]
        return self._delete(all_ids, relay_id, self._may_be_published)

    def _keep_published(self, groups: _Groups, relay_id: str) -> int:
        now = self._dialect.now
        changes = (
            f"published_at = {now}, updated_at = {now}, due_at = NULL, {CLEAR_LEASE},"
            # count_attempt() counted an attempt that succeeded
            f" retries = %s, last_error = NULL, {self._table.freed} = NULL"
        )
        return sum(
            self._update(changes, [retries], ids, relay_id, self._may_be_published)
            for retries, ids in groups.published.items()
        )

    def _postpone(self, ids: Sequence[int], postponement: _Postponement, relay_id: str) -> int:
        error, delay, retries, claimed_by = postponement
        return self._update(
            f"retries = %s, due_at = {self._dialect.from_now}, last_error = %s,"
            f" updated_at = {self._dialect.now}, claimed_by = %s, claimed_until = NULL",
            [retries, delay, self._dialect.storable_text(error), claimed_by],
            ids,
            relay_id,
        )

    def _move_to_dead_letters(
        self, ids: Sequence[int], error: str, attempts: int, relay_id: str
    ) -> int:
        """Copy and delete. The copy locks the rows, so no relay can claim them in between."""
        selected, params = self._dialect.id_in(ids)
        columns = DEAD_COLUMNS[self._table]
        self._session.run(
            f"INSERT INTO {DEAD_LETTER} ({', '.join(columns)}, retries, dead_at, failure_reason)"
            f" SELECT {', '.join(columns.values())}, %s, {self._dialect.now}, %s"
            f" FROM {self._name}"
            f" WHERE {selected} AND {OWN}{self._dialect.for_update}",
            [attempts, self._dialect.storable_text(error), *params, relay_id],
        )
        return self._delete(ids, relay_id)


class _Postponement(NamedTuple):
    """What is written for a row that is tried again."""

    error: str
    delay: float
    retries: int
    claimed_by: str | None


class _Groups(NamedTuple):
    """Ids grouped by what is written for them, so that equal outcomes share a statement."""

    published: dict[int, list[int]]
    """By failed attempts."""
    postponed: dict[_Postponement, list[int]]
    dead: dict[tuple[str, int], list[int]]
    """By error and failed attempts."""
    expired: list[int]

    @property
    def only_published(self) -> bool:
        return not (self.postponed or self.dead or self.expired)


def _grouped(outcomes: Iterable[Outcome]) -> _Groups:
    groups = _Groups(defaultdict(list), defaultdict(list), defaultdict(list), [])
    for outcome in outcomes:
        match outcome:
            case Published(message):
                groups.published[message.retries].append(message.id)
            case Retry(message, error, delay):
                again = _Postponement(error, delay, message.retries + 1, None)
                groups.postponed[again].append(message.id)
            case Deferred(message, error, delay):
                claimed_by = ORPHANED if message.orphaned else None
                again = _Postponement(error, delay, message.retries, claimed_by)
                groups.postponed[again].append(message.id)
            case Dead(message, error, attempts):
                groups.dead[error, attempts].append(message.id)
            case Expired(message):
                groups.expired.append(message.id)
    return groups
