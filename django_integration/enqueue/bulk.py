"""Buffers the rows of an `outbox_bulk()` block or of a group until one INSERT writes them.

The buffer follows the connection's transaction. Only calls of the block's own level wait for its
end: an inner `atomic()` may be rolled back alone, and the data of an on_commit hook is committed
already. Rows are written before a savepoint that the caller creates with SQL, and a rollback to it
drops the rows since. Calls in transactions that end with `commit()` and `rollback()` never wait.
"""

from __future__ import annotations

import time
from threading import get_ident
from typing import TYPE_CHECKING, Any

from django.db import connections

from django_integration.enqueue.call_stack import running_hooks
from django_integration.enqueue.rows import CHUNK_ROWS
from django_integration.enqueue.transactions import level, savepoint_by_hand
from django_integration.upstream.django import unwatch_statements, watch_statements, will_roll_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_integration.enqueue.rows import Row

    Write = Callable[[BaseDatabaseWrapper, list[Row]], None]

LONGEST_WAIT = 0.5
"""Seconds. Outside a transaction, a task that a group adds after this time writes the rows so far:
the group's generator may be slow. While the generator blocks, nothing is written."""


class BulkBuffer:
    """Rows by connection. Belongs to the thread that entered the block, and ends with the block."""

    def __init__(self, write: Write, outer: BulkBuffer | None, *, as_it_grows: bool) -> None:
        self.outer = outer
        self._write = write
        self._as_it_grows = as_it_grows
        self._since = time.monotonic()
        self._rows: dict[BaseDatabaseWrapper, list[Row]] = {}
        self._is_open = True
        self._thread = get_ident()
        hooks = running_hooks()
        self._levels = {c.alias: level(c, hooks) for c in connections.all(initialized_only=True)}
        self._level_of_new_connections = -hooks

    def accepts(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether a call right now may wait for the end of the block.

        A copied context carries the buffer into other threads, which have other transactions, and
        beyond the end of the block.
        """
        if not self._is_open or self._thread != get_ident():
            return False
        own = self._levels.get(connection.alias, self._level_of_new_connections)
        now = level(connection)
        return now is not None and now == own

    def add(self, connection: BaseDatabaseWrapper, rows: list[Row]) -> None:
        buffered = self._rows.get(connection)
        if buffered is None:
            buffered = self._rows[connection] = []
            watch_statements(connection, self._on_statement)
        buffered += rows
        if self._as_it_grows and (len(buffered) >= CHUNK_ROWS or self._is_overdue(connection)):
            self._pass_on(connection)

    def close(self, *, write: bool) -> None:
        """The block has ended; nothing is written if it raised."""
        self._is_open = False
        for connection in self._rows:
            unwatch_statements(connection, self._on_statement)
        for connection in self._rows if write else ():
            self._pass_on(connection)

    def flush(self, connection: BaseDatabaseWrapper, *, write: bool) -> None:
        """Write the rows so far, those of outer bulks first; or drop them."""
        outer = buffer_for(self.outer, connection)
        if outer is not None:
            outer.flush(connection, write=write)
        rows = self._rows.get(connection)
        if rows:
            self._rows[connection] = []
            if write:
                self._write(connection, rows)

    def holds_any(self, connection: BaseDatabaseWrapper, task_ids: set[str]) -> bool:
        """Whether one of these calls is not written yet, here or in an outer bulk."""
        if any(row.task_id in task_ids for row in self._rows.get(connection, ())):
            return True
        return self.outer is not None and self.outer.holds_any(connection, task_ids)

    def _pass_on(self, connection: BaseDatabaseWrapper) -> None:
        """Add the rows to the outer bulk, or write them if there is none."""
        rows, self._rows[connection] = self._rows[connection], []
        self._since = time.monotonic()
        # The calls of a block came before the transaction broke and are rolled back with it. A
        # group is one call that is made now, and raises Django's error.
        is_lost = will_roll_back(connection) and not self._as_it_grows
        if not rows or is_lost:
            return
        outer = buffer_for(self.outer, connection)
        if outer is None:
            self._write(connection, rows)
        else:
            outer.add(connection, rows)

    def _is_overdue(self, connection: BaseDatabaseWrapper) -> bool:
        return not connection.in_atomic_block and time.monotonic() - self._since >= LONGEST_WAIT

    def _on_statement(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        """Called for every statement of the connection, before it is executed."""
        connection, kind = context["connection"], savepoint_by_hand(sql)
        if kind is not None and self.accepts(connection):
            self.flush(connection, write=kind == "SAVEPOINT")
        return execute(sql, params, many, context)


def buffer_for(innermost: BulkBuffer | None, connection: BaseDatabaseWrapper) -> BulkBuffer | None:
    """The innermost of nested bulks that accepts a call on this connection."""
    buffer = innermost
    while buffer is not None and not buffer.accepts(connection):
        buffer = buffer.outer
    return buffer
