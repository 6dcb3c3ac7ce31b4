"""The calls of one `outbox_bulk()` block, or of a group, until their rows are written together.

What was gathered follows the connection's transaction. Only calls of the block's own level wait for
its end: an inner `atomic()` may be rolled back alone, an on_commit hook's data is committed. At a
savepoint that the caller makes by hand the rows so far are written, and its rollback drops the rows
since. Transactions that end with `commit()` and `rollback()` are not gathered in at all.
"""

from __future__ import annotations

import inspect
import sys
import time
from threading import get_ident
from typing import TYPE_CHECKING, Any

from django.db import connections

from django_integration.enqueue.rows import CHUNK_ROWS
from django_integration.enqueue.transactions import level, running_hooks, savepoint_by_hand

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_integration.enqueue.rows import Row

    Write = Callable[[BaseDatabaseWrapper, list[Row]], None]

LONGEST = 0.5
"""Seconds after which the next task of a group has the rows so far written, outside of a
transaction: its generator may be slow. While it is stalled nothing is written."""

_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_ENTERING = {"__enter__", "__aenter__", "enter_context", "enter_async_context"}


class BulkBuffer:
    """Rows by connection. Belongs to the thread that entered the block, and ends with it."""

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
        self._outside = -hooks

    def takes(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether a call right now may wait for the end of the block.

        A copied context carries the block into threads with transactions of their own, and beyond
        its end.
        """
        if not self._is_open or self._thread != get_ident():
            return False
        now = level(connection)
        return now is not None and now == self._levels.get(connection.alias, self._outside)

    def add(self, connection: BaseDatabaseWrapper, rows: list[Row]) -> None:
        gathered = self._rows.get(connection)
        if gathered is None:
            gathered = self._rows[connection] = []
            # In front: those who add a wrapper of their own take the last one away again.
            connection.execute_wrappers.insert(0, self._watch)
        gathered += rows
        if self._as_it_grows and (len(gathered) >= CHUNK_ROWS or self._is_overdue(connection)):
            self._pass_on(connection)

    def close(self, *, write: bool) -> None:
        """The block has ended; nothing is written if it raised."""
        self._is_open = False
        for connection in self._rows:
            connection.execute_wrappers.remove(self._watch)
        for connection in self._rows if write else ():
            self._pass_on(connection)

    def _pass_on(self, connection: BaseDatabaseWrapper) -> None:
        """Let the next bulk around this one have the rows, or write them."""
        rows, self._rows[connection] = self._rows[connection], []
        self._since = time.monotonic()
        if not rows or self._is_doomed(connection):
            return
        outer = buffer_for(self.outer, connection)
        if outer is None:
            self._write(connection, rows)
        else:
            outer.add(connection, rows)

    def _is_doomed(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether Django will roll back in any case, and allows no statement until then.

        The calls of a block came before, when all was well. A group is one call, and raises.
        """
        broken = connection.in_atomic_block and connection.needs_rollback
        return broken and not self._as_it_grows

    def _is_overdue(self, connection: BaseDatabaseWrapper) -> bool:
        return not connection.in_atomic_block and time.monotonic() - self._since >= LONGEST

    def _watch(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        """Sees every statement of the connection, before it is executed."""
        kind = savepoint_by_hand(sql)
        if kind is not None and self.takes(context["connection"]):
            self._flush_or_drop(context["connection"], write=kind == "SAVEPOINT")
        return execute(sql, params, many, context)

    def _flush_or_drop(self, connection: BaseDatabaseWrapper, *, write: bool) -> None:
        """Write what was gathered so far, here and around, in order; or drop it."""
        outer = buffer_for(self.outer, connection)
        if outer is not None:
            outer._flush_or_drop(connection, write=write)  # noqa: SLF001  one of us
        rows = self._rows.get(connection)
        if rows:
            self._rows[connection] = []
            if write:
                self._write(connection, rows)


def buffer_for(gathering: BulkBuffer | None, connection: BaseDatabaseWrapper) -> BulkBuffer | None:
    """The innermost of nested bulks that a call on this connection may wait in."""
    while gathering is not None and not gathering.takes(connection):
        gathering = gathering.outer
    return gathering


def may_be_suspended() -> bool:
    """Whether the `with` statement that is being entered is in a generator or coroutine.

    Others run while it is suspended in the middle of the block, in transactions of their own, and
    it may never be resumed. Generators of `@contextmanager` are entered on behalf of their caller,
    and Celery's own (of groups) are run to their end at once.
    """
    frame = _holder(sys._getframe(1))  # noqa: SLF001  the only way to the stack
    return (
        frame is not None
        and bool(frame.f_code.co_flags & _SUSPENDABLE)
        and frame.f_globals.get("__name__") != "celery.canvas"
    )


def _holder(frame: FrameType | None) -> FrameType | None:
    while frame is not None:
        caller = frame.f_back
        enters = frame.f_code.co_name in _ENTERING
        is_entered = caller is not None and caller.f_code.co_name in _ENTERING
        if not enters and not (is_entered and frame.f_code.co_flags & _SUSPENDABLE):
            return frame
        frame = caller
    return None
