"""Transactions that publish messages with the same key take turns: the order of the rows is that
of the commits.

A row's place is decided when it is written, and not when it is committed. So the key is locked from
then on until the transaction ends. Another transaction that publishes with the same key waits, as
it does for any row that both change. The relay's side is in `store/order.py`.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from django_integration.schema import ORDER_LOCK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.backends.base.base import BaseDatabaseWrapper

NAMESPACE = 0x6F75_7462
"""The first number of our advisory locks in PostgreSQL; the second one is the key's."""
LOCKS = 1024
"""So many advisory locks share all keys: a server has memory for a few thousand locks in all."""
ROWS = 16_384
"""Of the table of locks in MySQL and MariaDB. Two keys may share one."""


def lock_keys(connection: BaseDatabaseWrapper, keys: Iterable[str]) -> None:
    """Lock keys until the end of the open transaction, in one order everywhere."""
    if connection.vendor == "postgresql":
        statement = "SELECT pg_advisory_xact_lock(%s, number) FROM unnest(%s::int[]) AS number"
        params: list[Any] = [NAMESPACE, _numbers(keys, LOCKS)]
    elif connection.vendor == "mysql":
        params = [*_numbers(keys, ROWS)]
        marks = ", ".join(["%s"] * len(params))
        statement = f"SELECT id FROM {ORDER_LOCK} WHERE id IN ({marks}) ORDER BY id FOR UPDATE"  # noqa: S608  our own name
    else:
        return  # SQLite has one writer at a time
    with connection.cursor() as cursor:
        cursor.execute(statement, params)


def _numbers(keys: Iterable[str], limit: int) -> list[int]:
    """Of the locks of these keys, in the order in which they are taken."""
    return sorted({zlib.crc32(key.encode()) % limit for key in keys})
