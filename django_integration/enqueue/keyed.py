"""Stores calls with a key: at most one row with a key waits, because the key is a unique column.

A call that finds a waiting row keeps it, or replaces its message. Either way the row stays locked
until the caller's transaction ends, and a claim skips locked rows: what is published is published
after the commit, and so the task sees the caller's data. A row that a relay holds, or that is
published, does not wait any more: its key is taken from it. `enqueuer.py` calls `store_keyed`.
"""

# ruff: noqa: S608  SQL text is joined from our own names; values are always parameters
from __future__ import annotations

from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import Error, transaction
from django.db.transaction import atomic

from celery_outbox_steps.envelope import SCHEMA_VERSION
from celery_outbox_steps.errors import OutboxError
from django_integration.enqueue.rows import AT_ONCE
from django_integration.keys import readable_key
from django_integration.schema import (
    CALL_COLUMNS,
    DUE_AT_ETA,
    ETA,
    INSERT_NOW,
    KEY_INDEX,
    OUTBOX,
    UNHELD,
    Key,
    Row,
)
from django_integration.store.base import DIALECTS
from django_integration.store.session import is_open, own_wrapper
from django_integration.upstream.django import is_in_testcase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_integration.store.dialect import Dialect

    Insert = Callable[[list[Row]], list[str]]

ATTEMPTS = 20
"""An attempt fails if a relay takes or gives back one of the rows at that moment."""
RESTLESS = (
    "The key {!r} could not be taken, because its row changed at every attempt. With the isolation"
    " level REPEATABLE READ the transaction can't see the change: run it again."
)


class Waiting(NamedTuple):
    """A row that waits under a key."""

    task_id: str
    due_in: float
    """Seconds; below 0 if it is due."""


class Stored(NamedTuple):
    """What became of calls with keys, by key."""

    rows: dict[str, Row]
    """The calls that were stored."""
    kept: dict[str, Waiting]
    """The rows that waited already, and for which calls were dropped."""


def store_keyed(connection: BaseDatabaseWrapper, rows: Sequence[Row], insert: Insert) -> Stored:
    """Store the rows whose keys are free, or replace what waits. All of them have keys.

    `insert` writes rows, and leaves out those whose key exists by then. It returns the keys that it
    wrote, if the database can tell. The results of all calls are told what became of them.
    """
    winners = _winners(rows)
    keyed = KeyedRows(connection, in_transaction=is_open(connection))
    with atomic(using=connection.alias, savepoint=False):
        stored = keyed.store(winners, insert)
    for row in rows:
        key = _key(row)
        is_stored = key.text in stored.rows
        key.result.was_stored = is_stored and winners[key.text] is row
        # In full, where it is known: that of the table may be shortened.
        key.result.id = (
            _key(winners[key.text]).result.id if is_stored else stored.kept[key.text].task_id
        )
    return stored


def _winners(rows: Sequence[Row]) -> dict[str, Row]:
    """By key, the call that counts among calls with the same key.

    In one order in all transactions, so that two of them do not wait for each other.
    """
    winners: dict[str, Row] = {}
    for row in rows:
        if _key(row).text not in winners or _key(row).replace:
            winners[_key(row).text] = row
    return dict(sorted(winners.items()))


class KeyedRows:
    """The rows of one database that have keys."""

    def __init__(self, connection: BaseDatabaseWrapper, *, in_transaction: bool) -> None:
        self._connection = connection
        self._dialect: Dialect = DIALECTS[connection.vendor]()
        self._table = self._dialect.by(KEY_INDEX, OUTBOX)
        # SQLite has one writer, and another session does not see the rows of a TestCase.
        one_session = connection.vendor == "sqlite" or is_in_testcase(connection)
        self._frees_apart = in_transaction and not one_session

    def store(self, wanted: dict[str, Row], insert: Insert) -> Stored:
        """Store the calls or lock the rows that wait: all of them, in the order of the keys.

        An attempt that fails is undone, so that two bulks never take keys in different orders.
        MySQL can't undo a lock: there an attempt begins with a look, and goes on from the last one.
        """
        stored, dialect = Stored({}, {}), self._dialect
        if dialect.take_write_lock:
            self._execute(dialect.take_write_lock)
        seen = self._read(wanted) if dialect.stray_lock else {}
        for _ in range(ATTEMPTS):
            self._free([key for key, waits in seen.items() if not waits])
            self._attempt(wanted, seen, insert, stored)
            wanted = {
                key: row
                for key, row in wanted.items()
                if key not in stored.rows and key not in stored.kept
            }
            if not wanted:
                return stored
            if dialect.stray_lock:
                self._frees_apart = False  # the attempt may have locked rows that do not wait
            seen = self._read(wanted, lock=dialect.stray_lock)
        raise OutboxError(RESTLESS.format(readable_key(next(iter(wanted)))))

    def _attempt(
        self, wanted: dict[str, Row], seen: dict[str, bool], insert: Insert, stored: Stored
    ) -> None:
        """New rows first, then those that wait: who holds the latter waits for none of the former.

        Adds to `stored`: everything, or nothing if the database can undo it.
        """
        undoes, alias = self._dialect.unlocks_on_rollback, self._connection.alias
        savepoint = transaction.savepoint(using=alias) if undoes and len(wanted) > 1 else None
        new = {key: row for key, row in wanted.items() if not seen.get(key)}
        inserted = set(insert(list(new.values()))) if new else set()
        rest = {key: row for key, row in wanted.items() if key not in inserted}
        if undoes and rest and savepoint is None:  # one INSERT alone left nothing to undo
            savepoint = transaction.savepoint(using=alias)
        found = self._lock(rest)
        is_complete = len(found) == len(rest)
        if savepoint is not None:
            end = transaction.savepoint_commit if is_complete else transaction.savepoint_rollback
            end(savepoint, using=alias)
        if undoes and not is_complete:
            return
        if not self._dialect.returns_inserted:
            inserted = {key for key, row in new.items() if _is_own(found.get(key), row)}
        self._take(wanted, inserted, found, stored)

    def _take(
        self,
        wanted: dict[str, Row],
        inserted: Collection[str],
        found: dict[str, Waiting],
        stored: Stored,
    ) -> None:
        stored.rows.update({key: wanted[key] for key in inserted})
        for key, waiting in found.items():
            if _key(wanted[key]).replace:  # a row that seems to be its own may have the same id
                self._replace(wanted[key])
                stored.rows[key] = wanted[key]
            elif key not in stored.rows:
                stored.kept[key] = waiting

    def _read(self, keys: Collection[str], lock: str = "") -> dict[str, bool]:
        """The rows with these keys, and whether each waits."""
        selected, params = self._dialect.id_in(list(keys), "outbox_key")
        waits = f"CASE WHEN {self._dialect.is_state(UNHELD)} THEN 1 ELSE 0 END"
        found = self._rows(
            f"SELECT outbox_key, {waits} FROM {self._table} WHERE {selected}"
            f" ORDER BY outbox_key{lock}",
            params,
        )
        return {key: bool(waits) for key, waits in found}

    def _lock(self, rows: dict[str, Row]) -> dict[str, Waiting]:
        """The rows that wait under these keys, locked."""
        found: dict[str, Waiting] = {}
        for lock in dict.fromkeys((self._dialect.keep_lock, self._dialect.replace_lock)):
            keys = [key for key, row in rows.items() if self._lock_for(row) == lock]
            if keys:
                found |= self._lock_all(keys, lock)
        return found

    def _lock_for(self, row: Row) -> str:
        return self._dialect.replace_lock if _key(row).replace else self._dialect.keep_lock

    def _lock_all(self, keys: list[str], lock: str) -> dict[str, Waiting]:
        selected, params = self._dialect.id_in(keys, "outbox_key")
        found = self._rows(
            f"SELECT outbox_key, task_id, {self._dialect.seconds_until.format('due_at')}"
            f" FROM {self._table} WHERE {selected}"
            f" AND {self._dialect.is_state(UNHELD)} ORDER BY outbox_key{lock}",
            params,
        )
        return {key: Waiting(task_id, float(due_in)) for key, task_id, due_in in found}

    def _free(self, keys: list[str]) -> None:
        """Take the keys from rows that are in flight or published.

        Committed at once, in a session of its own, because a relay that settles its batch must not
        wait for the caller. That is right even if the caller rolls back: these rows do not wait.
        Only the caller itself can change a row that it has locked.
        """
        if not keys:
            return
        selected, params = self._dialect.id_in(keys, "outbox_key")
        held = f"{selected} AND NOT ({self._dialect.is_state(UNHELD)})"
        statement = f"UPDATE {self._table} SET outbox_key = NULL WHERE {held}"
        if self._frees_apart:
            self._frees_apart = self._execute_apart(statement, params)
        if not self._frees_apart:
            self._execute(statement, params)

    def _execute_apart(self, statement: str, params: Sequence[Any]) -> bool:
        """False if a row is locked: it may be by the caller, who would wait for itself."""
        dialect = self._dialect
        with closing(own_wrapper(self._connection.alias, dialect.options)) as own:
            own.set_autocommit(False)
            try:
                with own.cursor() as cursor:
                    cursor.execute(dialect.wait_briefly)
                    cursor.execute(statement, params)
                own.commit()
            except Error as error:
                if dialect.is_lock_conflict(error):
                    return False
                raise
        return True

    def _replace(self, row: Row) -> None:
        """The newest message and time, as if it were stored now."""
        when = row.when or AT_ONCE
        values = [*row[: len(CALL_COLUMNS)], *when, *when, _key(row).text]
        self._execute(_replacement(self._dialect.vendor, self._table), values)

    def _rows(self, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall())

    def _execute(self, sql: str, params: Sequence[Any] = ()) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, params)


@cache
def _replacement(vendor: str, table: str) -> str:
    fresh = {
        **dict.fromkeys(CALL_COLUMNS, "%s"),
        "created_at": INSERT_NOW[vendor],
        "due_at": DUE_AT_ETA[vendor],
        "eta": ETA[vendor],
        "retries": "0",
        "schema_version": str(SCHEMA_VERSION),
        **dict.fromkeys(("updated_at", "last_error", "claimed_by", "claimed_until"), "NULL"),
    }
    changes = ", ".join(f"{name} = {value}" for name, value in fresh.items())
    return f"UPDATE {table} SET {changes} WHERE outbox_key = %s"


def _key(row: Row) -> Key:
    assert row.key is not None  # noqa: S101  `store_keyed` is given no other rows
    return row.key


def _is_own(waiting: Waiting | None, row: Row) -> bool:
    """Whether a row that was not there before the INSERT is this one."""
    return waiting is not None and waiting.task_id == row.task_id
