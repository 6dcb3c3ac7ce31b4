"""Stores calls with a key: at most one row with a key waits, because the key is a unique column.

A call that finds a waiting row keeps it, or replaces its message. Either way the row stays locked
until the caller's transaction ends, and a claim skips locked rows: what is published is published
after the commit, and so the task sees the caller's data. A row that a relay holds, or that is
published, does not wait any more: its key is taken from it. `enqueuer.py` calls `store_keyed`.
"""

# ruff: noqa: S608  SQL text is joined from our own names; values are always parameters
from __future__ import annotations

from contextlib import closing, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import transaction
from django.db.transaction import atomic

from celery_outbox_steps.envelope import SCHEMA_VERSION
from django_integration.enqueue.rows import AT_ONCE
from django_integration.schema import (
    CALL_COLUMNS,
    DUE_AT_ETA,
    ETA,
    INSERT_NOW,
    OUTBOX,
    UNHELD,
    Row,
)
from django_integration.store.base import DIALECTS
from django_integration.store.session import is_open, own_wrapper
from django_integration.upstream.django import is_in_testcase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_integration.schema import Key
    from django_integration.store.dialect import Dialect


def store_keyed(
    connection: BaseDatabaseWrapper,
    rows: Sequence[Row],
    insert: Callable[[list[Row]], None],
) -> list[Row]:
    """Store the rows whose keys are free, or replace what waits. Returns those that were stored.

    `insert` writes rows, and leaves out those whose key exists by then. The results of all calls
    are told what became of them.
    """
    winners = _winners(rows)
    keyed = KeyedRows(connection, in_transaction=is_open(connection))
    with atomic(using=connection.alias, savepoint=False):
        stored, waiting = keyed.store(winners, insert)
    for row in rows:
        key = _key(row)
        _tell(row.key, waiting[key], was_stored=key in stored and winners[key] is row)
    return list(stored.values())


def _winners(rows: Sequence[Row]) -> dict[str, Row]:
    """By key, the call that counts among calls with the same key.

    In one order, in all transactions: two of them can't wait for each other within a statement.
    """
    winners: dict[str, Row] = {}
    for row in rows:
        if _key(row) not in winners or _replaces(row):
            winners[_key(row)] = row
    return dict(sorted(winners.items()))


class Seen(NamedTuple):
    """A row that has a key."""

    task_id: str
    waits: bool
    """No relay holds it or held it last, and it is not published."""


class KeyedRows:
    """The rows of one database that have keys."""

    def __init__(self, connection: BaseDatabaseWrapper, *, in_transaction: bool) -> None:
        self._connection = connection
        self._in_transaction = in_transaction
        self._dialect: Dialect = DIALECTS[connection.vendor]()
        self._table = f"{OUTBOX}{self._dialect.key_hint}"
        self._stray_lock = ""
        """The lock that may have stayed on rows that do not wait."""

    def store(
        self, wanted: dict[str, Row], insert: Callable[[list[Row]], None]
    ) -> tuple[dict[str, Row], dict[str, str]]:
        """The rows that were stored, and the id of the task that waits under each key.

        Another transaction may store a row, or a relay take one, between two statements: then it
        takes another round. New rows are inserted before others are locked, and both in the order
        of their keys: so two bulks do not wait for each other. Except on MySQL, where an INSERT
        locks a row whose key it meets: it must not meet one that a relay holds.
        """
        stored: dict[str, Row] = {}
        waiting: dict[str, str] = {}
        if self._dialect.take_write_lock:
            _execute(self._connection, self._dialect.take_write_lock)
        seen = self._read(wanted) if self._dialect.stray_lock else {}
        while left := {key: row for key, row in wanted.items() if key not in waiting}:
            self._free([key for key, row in seen.items() if not row.waits])
            waiting |= self._lock({key: left[key] for key, row in seen.items() if row.waits})
            replaced = {key: row for key, row in left.items() if key in waiting and _replaces(row)}
            self._replace(replaced)
            new = {key: row for key, row in left.items() if key not in seen or not seen[key].waits}
            if new:
                insert(list(new.values()))
            seen = self._read([key for key in left if key not in waiting])
            own = {key for key, row in seen.items() if row.task_id == left[key].task_id}
            stored |= replaced | {key: left[key] for key in own}
            waiting |= {key: _task_id(row) for key, row in stored.items()}
            seen = {key: row for key, row in seen.items() if key not in own}
            self._stray_lock = self._dialect.stray_lock
        return stored, waiting

    def _read(self, rows: Collection[str]) -> dict[str, Seen]:
        """What the table has under these keys."""
        if not rows:
            return {}
        selected, params = self._dialect.id_in(list(rows), "outbox_key")
        waits = f"CASE WHEN {self._dialect.is_state(UNHELD)} THEN 1 ELSE 0 END"
        found = self._rows(
            f"SELECT outbox_key, task_id, {waits} FROM {self._table} WHERE {selected}"
            f" ORDER BY outbox_key{self._stray_lock}",
            params,
        )
        return {key: Seen(task_id, bool(waits)) for key, task_id, waits in found}

    def _lock(self, rows: dict[str, Row]) -> dict[str, str]:
        """The ids of the tasks that still wait under these keys, locked."""
        found: dict[str, str] = {}
        for lock in dict.fromkeys((self._dialect.keep_lock, self._dialect.replace_lock)):
            keys = [key for key, row in rows.items() if self._lock_for(row) == lock]
            found |= self._lock_all(keys, lock) if keys else {}
        return found

    def _lock_for(self, row: Row) -> str:
        return self._dialect.replace_lock if _replaces(row) else self._dialect.keep_lock

    def _lock_all(self, keys: list[str], lock: str) -> dict[str, str]:
        """A row that a relay has taken meanwhile must not stay locked: the relay would wait for the
        caller. PostgreSQL can undo that; MySQL can't."""
        alias, undoes = self._connection.alias, self._dialect.unlocks_on_rollback
        savepoint = transaction.savepoint(using=alias) if undoes else None
        selected, params = self._dialect.id_in(keys, "outbox_key")
        found = dict(
            self._rows(
                f"SELECT outbox_key, task_id FROM {self._table} WHERE {selected}"
                f" AND {self._dialect.is_state(UNHELD)} ORDER BY outbox_key{lock}",
                params,
            )
        )
        if savepoint is None:
            return found
        missed = len(found) < len(keys)
        end = transaction.savepoint_rollback if missed else transaction.savepoint_commit
        end(savepoint, using=alias)
        return {} if missed else found

    def _free(self, keys: list[str]) -> None:
        """Take the keys from rows that are in flight or published.

        Committed at once, because a relay that settles its batch must not wait for the caller. That
        is right even if the caller rolls back: these rows do not wait. Rows that the caller has
        locked can only be changed by the caller.
        """
        if not keys:
            return
        selected, params = self._dialect.id_in(keys, "outbox_key")
        apart = self._in_transaction and not self._stray_lock
        with _session(self._connection, self._dialect, apart=apart) as connection:
            _execute(
                connection,
                f"UPDATE {self._table} SET outbox_key = NULL"
                f" WHERE {selected} AND NOT ({self._dialect.is_state(UNHELD)})",
                params,
            )

    def _replace(self, rows: dict[str, Row]) -> None:
        """The newest message and time, as if it were stored now."""
        statement = _replacement(self._dialect.vendor, self._table)
        for key, row in rows.items():
            when = row.when or AT_ONCE
            values = [*row[: len(CALL_COLUMNS)], *when, *when, key]
            _execute(self._connection, statement, values)

    def _rows(self, sql: str, params: list[Any]) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall())


@contextmanager
def _session(
    connection: BaseDatabaseWrapper, dialect: Dialect, *, apart: bool
) -> Iterator[BaseDatabaseWrapper]:
    """`apart`: a session outside the caller's transaction. SQLite has one writer: there it is the
    caller's, and so it is in a TestCase, whose rows no other session sees."""
    one_writer = dialect.vendor == "sqlite" or is_in_testcase(connection)
    if one_writer or not apart:
        yield connection
        return
    with closing(own_wrapper(connection.alias, dialect.options)) as own:
        yield own


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


def _execute(connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any] = ()) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)


def _key(row: Row) -> str:
    return row.key.text if row.key else ""


def _replaces(row: Row) -> bool:
    return row.key is not None and row.key.replace


def _task_id(row: Row) -> str:
    """In full: that of the row may be shortened."""
    return str(row.key.result.id) if row.key else row.task_id


def _tell(key: Key | None, task_id: str, *, was_stored: bool) -> None:
    if key is not None:
        key.result.id, key.result.was_stored = task_id, was_stored
