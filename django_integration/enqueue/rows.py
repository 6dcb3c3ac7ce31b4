"""Writes rows: one INSERT for one call, one INSERT per chunk for many.

The SQL text is built once per database vendor and number of rows: the ORM's `create()` costs about
1.7 times as much. Times are the database's own. On PostgreSQL the same statement can wake the relay
with a NOTIFY, which PostgreSQL delivers when the transaction commits. If no row is held, the INSERT
does not name `eta`, and if none has a key, not `outbox_key`: they cost nothing more. Next: the
claim in `store/`.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.db.transaction import atomic

from celery_outbox_steps.envelope import SCHEMA_VERSION, size_of
from django_integration.schema import (
    CALL_COLUMNS,
    DUE_AT_ETA,
    ETA,
    INSERT_NOW,
    LOOK_AHEAD,
    NOTIFY,
    NOTIFY_HELD,
    OUTBOX,
    Row,
    When,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["CHUNK_ROWS", "Row", "insert", "notify_relay"]

CHUNK_ROWS = 500
CHUNK_BYTES = 1_000_000
AT_ONCE = When(None, None)
COLUMNS = len(CALL_COLUMNS)
KEYED_COLUMNS = (*CALL_COLUMNS, "outbox_key")
UNLESS_KEY_EXISTS = {
    "postgresql": " ON CONFLICT DO NOTHING RETURNING outbox_key",
    "sqlite": " ON CONFLICT DO NOTHING RETURNING outbox_key",
    # Not IGNORE: its shared lock on the other row makes two that wait for a third deadlock.
    "mysql": " ON DUPLICATE KEY UPDATE id = id",
}


def insert(
    connection: BaseDatabaseWrapper,
    rows: Sequence[Row],
    *,
    notify: bool = False,
    soon: float | None = LOOK_AHEAD,
) -> list[str]:
    """Write the rows in the connection's current transaction.

    All of them have a key, or none has; one whose key exists is left out. Returns the keys that
    were written, where the database returns them. `notify`: wake the relay, unless all rows are
    held for longer than `soon` seconds.
    """
    notify = notify and connection.vendor == "postgresql"
    if not any(row.when for row in rows):
        soon = None
    limit = connection.features.max_query_params
    per_row = COLUMNS + (rows[0].key is not None) + (0 if soon is None else 2 * len(AT_ONCE))
    most = CHUNK_ROWS if limit is None else min(CHUNK_ROWS, limit // per_row)
    chunks = [rows] if len(rows) == 1 else list(_chunks(rows, most))
    # One statement is atomic by itself; several need a transaction.
    together = atomic(connection.alias) if len(chunks) > 1 else nullcontext()
    written: list[str] = []
    with together, connection.cursor() as cursor:
        for chunk in chunks:
            cursor.execute(*_insertion(connection.vendor, chunk, notify=notify, soon=soon))
            if rows[0].key is not None and cursor.description:
                written += [key for (key,) in cursor.fetchall()]
    return written


def notify_relay(connection: BaseDatabaseWrapper) -> None:
    """Wake the relay without writing a row. It also looks when the next row is due."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {NOTIFY_HELD}")


def _chunks(rows: Sequence[Row], most: int) -> Iterator[list[Row]]:
    chunk: list[Row] = []
    size = 0
    for row in rows:
        if chunk and (len(chunk) == most or size + size_of(row) > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += size_of(row)
    if chunk:
        yield chunk


def _insertion(
    vendor: str, rows: Sequence[Row], *, notify: bool, soon: float | None
) -> tuple[str, list[Any]]:
    """The statement and its parameters. `soon` is None if no row is held."""
    if vendor == "postgresql" and len(rows) > 1:
        statement = _from_json(notify, soon, rows[0].key is not None)
        return statement, [json.dumps(list(map(_record, rows)), default=bytes.hex)]
    keyed = rows[0].key is not None
    statement = _from_values(vendor, len(rows), notify, soon, keyed)
    if soon is None and not keyed:
        return statement, [value for row in rows for value in row[:COLUMNS]]
    return statement, [value for row in rows for value in _values(row, timed=soon is not None)]


def _values(row: Row, *, timed: bool) -> tuple[Any, ...]:
    key = () if row.key is None else (row.key.text,)
    when = (row.when or AT_ONCE) if timed else ()
    return (*row[:COLUMNS], *key, *when, *when)


def _record(row: Row) -> dict[str, Any]:
    record = row._asdict()
    when, key = record.pop("when"), record.pop("key")
    return {
        **record,
        **({} if when is None else when._asdict()),
        **({} if key is None else {"outbox_key": key.text}),
    }


@lru_cache(maxsize=2048)
def _from_values(vendor: str, count: int, notify: bool, soon: float | None, keyed: bool) -> str:  # noqa: FBT001  a cache key
    columns = ", ".join(["%s"] * len(KEYED_COLUMNS if keyed else CALL_COLUMNS))
    values = f"({columns}, {_times(vendor, soon)}, 0, {SCHEMA_VERSION})"
    conflict = UNLESS_KEY_EXISTS[vendor] if keyed else ""
    rows = f"VALUES {', '.join([values] * count)}{conflict}"
    return _statement(rows, notify=notify, soon=soon, keyed=keyed)


@lru_cache(maxsize=8)
def _from_json(notify: bool, soon: float | None, keyed: bool) -> str:  # noqa: FBT001  a cache key
    """One parameter for all rows: the drivers need twice as long for thousands of small ones."""
    names = KEYED_COLUMNS if keyed else CALL_COLUMNS
    columns = ", ".join(names).replace("payload", "decode(payload, 'hex')")
    times = _times("postgresql", soon)
    if soon is not None:
        times %= 2 * When._fields
    record = ", ".join(f"{name} text" for name in (*names, *When._fields))
    conflict = UNLESS_KEY_EXISTS["postgresql"] if keyed else ""
    return _statement(
        f"SELECT {columns}, {times}, 0, {SCHEMA_VERSION}"  # noqa: S608  our own names
        f" FROM json_to_recordset(%s::json) AS row({record}){conflict}",
        notify=notify,
        soon=soon,
        keyed=keyed,
    )


def _times(vendor: str, soon: float | None) -> str:
    """`created_at` and `due_at`, and `eta` if a row is held."""
    now = INSERT_NOW[vendor]
    return f"{now}, {now}" if soon is None else f"{now}, {DUE_AT_ETA[vendor]}, {ETA[vendor]}"


def _statement(rows: str, *, notify: bool, soon: float | None, keyed: bool) -> str:
    columns = ", ".join(KEYED_COLUMNS if keyed else CALL_COLUMNS)
    times = "created_at, due_at" if soon is None else "created_at, due_at, eta"
    insert_rows = f"INSERT INTO {OUTBOX} ({columns}, {times}, retries, schema_version) {rows}"
    if not notify:
        return insert_rows
    if soon is None:
        return f"WITH rows AS ({insert_rows}) SELECT {NOTIFY}"
    is_soon = f"due_at < {INSERT_NOW['postgresql']} + interval '{soon} second'"
    notify_if_soon = f"SELECT {NOTIFY_HELD} FROM rows WHERE {is_soon} LIMIT 1"  # noqa: S608  ours
    return f"WITH rows AS ({insert_rows} RETURNING due_at) {notify_if_soon}"
