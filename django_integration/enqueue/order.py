"""Transactions that publish messages with the same key take turns: the order of the rows is that
of the commits.

A row's place is decided when it is written, and not when it is committed. So the key is locked from
then on until the transaction ends. Another transaction that publishes with the same key waits, as
it does for any row that both change. The relay's side is in `store/order.py`.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

from django.db import ProgrammingError

from celery_outbox_steps.errors import StoreNotReady
from django_integration.schema import APP_LABEL, ORDER_LOCK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.backends.base.base import BaseDatabaseWrapper

NAMESPACE = 0x6F75_7462
"""The first number of our advisory locks in PostgreSQL; the second one is the key's."""
LOCKS = 1024
"""The number of advisory locks that all keys share: a server has memory for a few thousand."""
ROWS = 16_384
"""Of the table of locks in MySQL and MariaDB. Two keys may share one."""
LOCK_NUMBERS = "SELECT pg_advisory_xact_lock(%s, number) FROM unnest(%s::int[]) AS number"


def lock_keys(connection: BaseDatabaseWrapper, keys: Iterable[str]) -> None:
    """Lock keys until the end of the open transaction, in one order everywhere."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(LOCK_NUMBERS, [NAMESPACE, _numbers(keys, LOCKS)])
    elif connection.vendor == "mysql":
        _lock_rows(connection, _numbers(keys, ROWS))
    # SQLite has one writer at a time.


def _lock_rows(connection: BaseDatabaseWrapper, ids: list[int]) -> None:
    marks = ", ".join(["%s"] * len(ids))
    found = 0
    with suppress(ProgrammingError), connection.cursor() as cursor:  # there is no such table
        cursor.execute(
            f"SELECT id FROM {ORDER_LOCK} WHERE id IN ({marks}) ORDER BY id FOR UPDATE",  # noqa: S608  our own name
            ids,
        )
        found = len(cursor.fetchall())
    if found < len(ids):  # as in a dump without data: a row that is not there can't be locked
        raise StoreNotReady(
            f"database {connection.alias!r}: no table {ORDER_LOCK} with a row for each id from 0 to"
            f" {ROWS - 1}. Keys need it; the migration 0005 of {APP_LABEL} makes it."
        )


def _numbers(keys: Iterable[str], limit: int) -> list[int]:
    """Of the locks of these keys, in the order in which they are taken."""
    return sorted({zlib.crc32(key.encode()) % limit for key in keys})
