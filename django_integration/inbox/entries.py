"""Entries of the inbox: one row per piece of work, in the transaction of that work.

The row is written first. A second transaction with the same key waits for the first one: if that
commits, it finds the entry; if that is rolled back, or its process dies, it does the work. So there
is no lock that could stay behind. `once.py` calls `entered()`; `store/maintenance.py` purges.
"""

# ruff: noqa: S608  SQL text is joined from our own names; values are always parameters
from __future__ import annotations

import time
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from django.db import Error, connections, transaction

from celery_outbox_steps.errors import OutboxError
from django_integration.schema import INBOX, NOW
from django_integration.store.base import DIALECTS
from django_integration.store.session import is_open, own_wrapper
from django_integration.store.setup import refuse_without_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

NO_AUTOCOMMIT = (
    "Database {!r} has autocommit off, so that nothing would be committed. Put the work into"
    " transaction.atomic() of your own and commit it, or turn AUTOCOMMIT on."
)
ROLLED_BACK = (
    "The database has rolled the transaction back, for example because of a deadlock, and the task"
    " went on. Let the error through, or catch it around transaction.atomic()."
)
COMMIT_IN_DOUBT = 30.0
"""Seconds to wait for a database that went away during a COMMIT, to ask what became of it."""


class Entry(NamedTuple):
    """The identity of a piece of work."""

    alias: str
    key: str
    """As stored."""
    task_name: str
    keep: float
    """Seconds until a purge may delete it."""


class StoredResult(NamedTuple):
    """The return value of work that was done; empty if it was None. Fields are columns."""

    content_type: str | None = None
    content_encoding: str | None = None
    result: bytes | None = None


NO_RESULT = StoredResult()
RESULT_COLUMNS = ", ".join(StoredResult._fields)
RECORD_RESULT = (
    f"UPDATE {INBOX} SET {', '.join(f'{name} = %s' for name in StoredResult._fields)}"
    " WHERE inbox_key = %s"
)


class Work:
    """A piece of work in its transaction."""

    def __init__(self, before: StoredResult | None) -> None:
        self.before = before
        """The result, if it was done before; None: do it now."""
        self.recovered: StoredResult | None = None
        """The result, if the answer to the COMMIT was lost: it may be another delivery's."""


@contextmanager
def entered(entry: Entry) -> Iterator[Work]:
    """A transaction around a piece of work.

    If the answer to the COMMIT is lost, the entry tells whether it took effect.
    """
    connection = connections[entry.alias]
    outermost = not is_open(connection)
    if not outermost and not connection.in_atomic_block:
        raise OutboxError(NO_AUTOCOMMIT.format(connection.alias))
    block, before = _begin(connection, entry, again=outermost)
    work, finished, session = Work(before), False, connection.connection
    try:
        with block:
            yield work
            finished = True
    except Error:
        # Django has replaced a session that was lost. An error that leaves it is not of the COMMIT,
        # but of an on_commit hook.
        if finished and outermost and connection.connection is not session:
            work.recovered = _recovered(entry)
        if work.recovered is None:
            raise


def record_result(entry: Entry, value: StoredResult) -> None:
    """Add the return value to an entry of the current transaction.

    Raises if that can only be rolled back, or was, which the work may have ignored.
    """
    connection = connections[entry.alias]
    dialect = DIALECTS[connection.vendor]
    if transaction.get_rollback(entry.alias) or dialect.is_aborted(connection):
        raise OutboxError(ROLLED_BACK)
    if value == NO_RESULT and not dialect.loses_transactions:
        return
    with connection.cursor() as cursor:
        cursor.execute(RECORD_RESULT, [*value, entry.key])
        if cursor.rowcount != 1:
            raise OutboxError(ROLLED_BACK)


def _begin(
    connection: BaseDatabaseWrapper, entry: Entry, *, again: bool
) -> tuple[ExitStack, StoredResult | None]:
    """Begin a transaction and write the entry. `again`: whenever the database gives up waiting for
    the one that has it, wait on; time limits of the task apply."""
    while True:
        try:
            with ExitStack() as attempt:
                attempt.enter_context(transaction.atomic(using=entry.alias))
                stored = _enter(connection, entry)
                return attempt.pop_all(), stored
        except Error as error:  # noqa: PERF203  it is repeated because of the error
            if again and DIALECTS[connection.vendor].is_lock_conflict(error):
                continue
            refuse_without_tables(connection, error)
            raise


def _enter(connection: BaseDatabaseWrapper, entry: Entry) -> StoredResult | None:
    """None if the entry is new. The statement waits for an open transaction that wrote it."""
    upsert, select = _statements(connection.vendor)
    values: list[str | float] = [entry.key, entry.task_name, entry.keep]
    with connection.cursor() as cursor:
        if connection.features.can_return_columns_from_insert:
            cursor.execute(f"{upsert} RETURNING duplicates, {RESULT_COLUMNS}", values)
        else:
            cursor.execute(upsert, values)
            cursor.execute(select, [entry.key])
        duplicates, *stored = cursor.fetchone()
    return StoredResult(*stored) if duplicates else None


@cache
def _statements(vendor: str) -> tuple[str, str]:
    """Write an entry, or count a duplicate of it; and read it, where that can't return it."""
    dialect = DIALECTS[vendor]
    columns = "inbox_key, task_name, created_at, expires_at, duplicates"
    values = f"%s, %s, {NOW[vendor]}, {dialect.from_now}, 0"
    return (
        f"INSERT INTO {INBOX} ({columns}) VALUES ({values})"
        f" {dialect.on_inbox_conflict} duplicates = {INBOX}.duplicates + 1",
        f"SELECT duplicates, {RESULT_COLUMNS} FROM {INBOX} WHERE inbox_key = %s",
    )


def _recovered(entry: Entry) -> StoredResult | None:
    """The result in the table; None if there is no entry, or if there is no answer in time."""
    end = time.monotonic() + COMMIT_IN_DOUBT
    while time.monotonic() < end:
        with suppress(Error):
            return _committed_result(entry)
        time.sleep(0.5)
    return None


def _committed_result(entry: Entry) -> StoredResult | None:
    """Asked on a new connection, by an INSERT that is rolled back: it waits for a COMMIT that the
    server has not finished. Raises if that takes long."""
    dialect = DIALECTS[connections[entry.alias].vendor]
    with closing(own_wrapper(entry.alias, dialect.options)) as connection:
        connection.set_autocommit(False)
        if dialect.wait_briefly:
            with connection.cursor() as cursor:
                cursor.execute(dialect.wait_briefly)
        return _enter(connection, entry)
