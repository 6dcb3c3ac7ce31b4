"""Writes rows: one INSERT for one call, one INSERT per chunk for many.

The SQL text is built once per database vendor, kind of rows and number of rows: the ORM's
`create()` costs about 1.7 times as much. Times are the database's own. On PostgreSQL the same
statement can wake the relay with a NOTIFY, which PostgreSQL delivers when the transaction commits.
If no row is held, the INSERT does not name `eta`, and if none has a key, not `outbox_key`: they
cost nothing more. Next: the claim in `store/`.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.transaction import atomic

from celery_outbox_steps.envelope import SCHEMA_VERSION, size_of
from django_integration.schema import (
    CALL_COLUMNS,
    DUE_AT_ETA,
    ETA,
    INSERT_NOW,
    LOOK_AHEAD,
    NOTIFY,
    NOTIFY_DESTINATION,
    NOTIFY_HELD,
    TASKS,
    MessageTable,
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
DELIVERY_COLUMNS = (*CALL_COLUMNS, "destination", "order_key", "schema_version")
KEYED_COLUMNS = (*CALL_COLUMNS, "outbox_key")
NOTIFY_ONE = f"SELECT {NOTIFY_DESTINATION} FROM (SELECT %s::text) AS named (destination)"  # noqa: S608  ours
UNLESS_KEY_EXISTS = {
    "postgresql": " ON CONFLICT DO NOTHING RETURNING outbox_key",
    "sqlite": " ON CONFLICT DO NOTHING RETURNING outbox_key",
    # Not IGNORE: its shared lock on the other row makes two that wait for a third deadlock.
    "mysql": " ON DUPLICATE KEY UPDATE id = id",
}


class Form(NamedTuple):
    """What an INSERT looks like."""

    vendor: str
    table: MessageTable
    keyed: bool
    """The rows have an `outbox_key`."""
    soon: float | None
    """None: no row is held. Otherwise relays are woken for those due within this many seconds."""
    notify: bool

    @property
    def columns(self) -> tuple[str, ...]:
        if self.table is TASKS:
            return KEYED_COLUMNS if self.keyed else CALL_COLUMNS
        return DELIVERY_COLUMNS


def insert(
    connection: BaseDatabaseWrapper,
    rows: Sequence[Row],
    *,
    notify: bool = False,
    soon: float | None = LOOK_AHEAD,
) -> list[str]:
    """Write the rows in the connection's current transaction.

    All of them are for one table, and have a key or have none; one whose key exists is left out.
    Returns the keys that were written, where the database returns them. `notify`: wake the relay,
    unless all rows are held for longer than `soon` seconds.
    """
    notify = notify and connection.vendor == "postgresql"
    if not any(row.when for row in rows):
        soon = None
    form = Form(connection.vendor, rows[0].table, rows[0].key is not None, soon, notify)
    limit = connection.features.max_query_params
    per_row = len(form.columns) + (0 if soon is None else 2 * len(AT_ONCE))
    most = CHUNK_ROWS if limit is None else min(CHUNK_ROWS, limit // per_row)
    chunks = [rows] if len(rows) == 1 else list(_chunks(rows, most))
    # One statement is atomic by itself; several need a transaction.
    together = atomic(connection.alias) if len(chunks) > 1 else nullcontext()
    written: list[str] = []
    with together, connection.cursor() as cursor:
        for chunk in chunks:
            cursor.execute(*_insertion(form, chunk))
            if form.keyed and cursor.description:
                written += [key for (key,) in cursor.fetchall()]
    return written


def notify_relay(connection: BaseDatabaseWrapper, destinations: Sequence[str] = ()) -> None:
    """Wake relays without writing a row: that of the app's own broker, or of destinations. It also
    looks when the next row is due."""
    with connection.cursor() as cursor:
        if not destinations:
            cursor.execute(f"SELECT {NOTIFY_HELD}")
        for destination in destinations:
            cursor.execute(NOTIFY_ONE, [destination])


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


def _insertion(form: Form, rows: Sequence[Row]) -> tuple[str, list[Any]]:
    """The statement and its parameters."""
    if form.vendor == "postgresql" and len(rows) > 1:
        return _from_json(form), [json.dumps(_records(form, rows), default=bytes.hex)]
    statement = _from_values(form, len(rows))
    if form.soon is None and form.columns is CALL_COLUMNS:
        return statement, [value for row in rows for value in row[:COLUMNS]]
    return statement, [value for row in rows for value in _values(form, row)]


def _values(form: Form, row: Row) -> tuple[Any, ...]:
    when = () if form.soon is None else row.when or AT_ONCE
    return (*row[:COLUMNS], *_more(form, row), *when, *when)


def _more(form: Form, row: Row) -> tuple[Any, ...]:
    """The values of columns that not every row has."""
    if form.table is not TASKS:
        return (row.destination, row.order_key, row.schema_version)
    return () if row.key is None else (row.key.text,)


def _records(form: Form, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The values of each row by column, and those of its `When`."""
    columns = form.columns
    return [
        {
            **dict(zip(columns, (*row[:COLUMNS], *_more(form, row)), strict=True)),
            **({} if row.when is None else row.when._asdict()),
        }
        for row in rows
    ]


@lru_cache(maxsize=2048)
def _from_values(form: Form, count: int) -> str:
    columns = ", ".join(["%s"] * len(form.columns))
    values = f"({columns}, {_times(form)}, {_constants(form)})"
    conflict = UNLESS_KEY_EXISTS[form.vendor] if form.keyed else ""
    return _statement(form, f"VALUES {', '.join([values] * count)}{conflict}")


@lru_cache(maxsize=32)
def _from_json(form: Form) -> str:
    """One parameter for all rows: the drivers need twice as long for thousands of small ones."""
    names = form.columns
    columns = ", ".join(names).replace("payload", "decode(payload, 'hex')")
    columns = columns.replace("schema_version", "schema_version::smallint")
    times = _times(form)
    if form.soon is not None:
        times %= 2 * When._fields
    record = ", ".join(f"{name} text" for name in (*names, *When._fields))
    conflict = UNLESS_KEY_EXISTS["postgresql"] if form.keyed else ""
    return _statement(
        form,
        f"SELECT {columns}, {times}, {_constants(form)}"  # noqa: S608  our own names
        f" FROM json_to_recordset(%s::json) AS row({record}){conflict}",
    )


def _times(form: Form) -> str:
    """`created_at` and `due_at`, and `eta` if a row is held."""
    now = INSERT_NOW[form.vendor]
    held = f"{now}, {DUE_AT_ETA[form.vendor]}, {ETA[form.vendor]}"
    return f"{now}, {now}" if form.soon is None else held


def _constants(form: Form) -> str:
    """`retries`, and `schema_version` if all rows of the table have the same."""
    return f"0, {SCHEMA_VERSION}" if form.table is TASKS else "0"


def _statement(form: Form, rows: str) -> str:
    names = ", ".join(form.columns)
    times = "created_at, due_at" if form.soon is None else "created_at, due_at, eta"
    constants = "retries, schema_version" if form.table is TASKS else "retries"
    insert_rows = f"INSERT INTO {form.table.name} ({names}, {times}, {constants}) {rows}"
    if not form.notify:
        return insert_rows
    soon = f"due_at < {INSERT_NOW['postgresql']} + interval '{form.soon} second'"
    if form.table is not TASKS:
        which = "" if form.soon is None else f" WHERE {soon}"
        return (
            f"WITH rows AS ({insert_rows} RETURNING destination, due_at) SELECT"  # noqa: S608
            f" {NOTIFY_DESTINATION} FROM (SELECT DISTINCT destination FROM rows{which}) AS named"
        )
    if form.soon is None:
        return f"WITH rows AS ({insert_rows}) SELECT {NOTIFY}"
    notify_if_soon = f"SELECT {NOTIFY_HELD} FROM rows WHERE {soon} LIMIT 1"  # noqa: S608  ours
    return f"WITH rows AS ({insert_rows} RETURNING due_at) {notify_if_soon}"
