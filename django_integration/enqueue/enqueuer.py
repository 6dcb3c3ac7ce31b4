"""Enqueue: a captured message becomes a row in the caller's transaction, and commits with it.

Decides which database a row belongs to and whether it may be written outside a transaction. The
rows of `outbox_bulk()` and of groups share one INSERT. Next: `writer.py` writes them; then the
relay claims them through `store/`.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections

from celery_outbox_steps.envelope import FOR_DESTINATION, stored_id
from celery_outbox_steps.errors import OutboxError
from celery_outbox_steps.observe.log import log
from django_integration.enqueue.bulk import BulkBuffer, buffer_for
from django_integration.enqueue.call_stack import (
    block_may_be_suspended,
    is_in_hook,
    place_in_hook,
)
from django_integration.enqueue.changes import Changes
from django_integration.enqueue.events import destinations_of, event_of, rows_of
from django_integration.enqueue.redaction import redact
from django_integration.enqueue.rows import Row
from django_integration.enqueue.sealing import copy_arguments, seal_captured
from django_integration.enqueue.settings import EnqueueSettings, Meters
from django_integration.enqueue.transactions import is_command_line_call, level
from django_integration.enqueue.writer import IN_ASYNC_CODE, Writer
from django_integration.inbox.once import once_in
from django_integration.store.base import DIALECTS
from django_integration.store.session import is_open, outbox_aliases, own_wrapper, write_alias
from django_integration.upstream.django import atomic_blocks, is_of_testcase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime, timedelta

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_integration.enqueue.capture import CapturingProducer
    from django_integration.schema import Key, When

EVENT_IN_ASYNC_CODE = (
    "An event can't be stored from inside a running event loop, because Django's database access "
    "would block it. Use `await app.outbox.apublish(...)`. To store it together with your data, "
    "put both into a function with `transaction.atomic()` and call that with "
    "`await sync_to_async(function)(...)`."
)

STILL_BUFFERED = (
    "This call waits for the end of an outbox_bulk() block that began outside the current "
    "atomic() block. Revoke or reschedule it outside the inner atomic() block, or after the bulk."
)


class TransactionRequired(OutboxError, RuntimeError):
    """A task was called, or an event published, outside a transaction, and `require_transaction`
    forbids that."""


class Enqueuer:
    """The enqueue side of one app."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._warned: set[Any] = set()
        self._writer = Writer(type(app))
        self._meters = Meters(app)
        self._buffer: ContextVar[BulkBuffer | None] = ContextVar("bulk_buffer", default=None)
        self._changes = Changes(app, self._write_buffered)
        self.in_beat = False

    @cached_property
    def settings(self) -> EnqueueSettings:
        """Read by the first call, when Django is configured."""
        found = self._writer.settings = EnqueueSettings(self._app, self._meters)
        return found

    def forget_settings(self) -> None:
        """Drop the settings after a change: the next call reads them again."""
        vars(self).pop("settings", None)

    def database(self, task_name: str, using: str | None) -> BaseDatabaseWrapper:
        """The connection for a call's row, connected. Raises where a row must not be written."""
        connection = connections[using or write_alias()]
        try:
            if self.in_beat or connection.errors_occurred:
                _replace_if_lost(connection, aged=self.in_beat)
            connection.ensure_connection()
        except SynchronousOnlyOperation as exc:
            raise SynchronousOnlyOperation(IN_ASYNC_CODE) from exc
        self._check_transaction(connection, task_name)
        if using is not None:
            self._check_alias(using, task_name)
        return connection

    def store(
        self,
        connection: BaseDatabaseWrapper,
        task_name: str,
        task_id: str,
        producer: CapturingProducer,
        *,
        when: When | None = None,
        key: Key | None = None,
        destination: str | None = None,
    ) -> None:
        """Write the captured message as a row, now or at the end of the current bulk."""
        row = self._row(task_name, task_id, producer, when, key)
        if destination is not None:
            version = FOR_DESTINATION + row.schema_version
            row = row._replace(destination=destination, schema_version=version)
        self._store_rows(connection, [row])

    def _store_rows(self, connection: BaseDatabaseWrapper, rows: list[Row]) -> None:
        innermost = self._buffer.get()
        buffer = None if innermost is None else buffer_for(innermost, connection)
        if buffer is not None:
            buffer.add(connection, rows)
        elif len(rows) == 1 and rows[0].key is None and rows[0].destination is None:
            self._writer.write(connection, rows)
        else:
            self._writer.write_all(connection, rows)

    def store_apart(
        self,
        using: str | None,
        task_name: str,
        task_id: str,
        producer: CapturingProducer,
        when: When | None = None,
    ) -> None:
        """Write the row so that it is committed at once, whatever the caller's transaction does.

        Without a transaction the caller's connection commits it; otherwise it takes another one.
        """
        row = self._row(task_name, task_id, producer, when)
        connection = connections[using or write_alias()]
        _replace_if_lost(connection, aged=False)  # the task may have run for longer than a session
        if not is_open(connection):
            self._writer.write(connection, [row])
            return
        own = own_wrapper(connection.alias, DIALECTS[connection.vendor].options)
        try:
            self._writer.write(own, [row])
        finally:
            own.close()

    def captured_row(self, task_name: str, task_id: str, producer: CapturingProducer) -> Row:
        """What a call would store, for a failed task that is kept."""
        return self._row(task_name, task_id, producer, None)

    def publish(
        self,
        name: str,
        data: Any = None,
        *,
        to: str | Sequence[str],
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        eta: datetime | str | None = None,
        countdown: float | timedelta | None = None,
        content_type: str | None = None,
        using: str | None = None,
    ) -> str:
        """Store an event for other systems, one row for each destination in `to`. Returns its id.

        Part of the caller's transaction, as a task call is. `data` becomes JSON: dictionaries,
        lists, texts, numbers, dates, dataclasses, models of Pydantic; or it is bytes, with a
        `content_type`. What can't be sent raises `OutboxError`, and nothing is stored.

        Messages for one destination with the same `key` are published in the order of their
        commits: a transaction waits for another one that has published with the key. One that
        fails, or has an `eta`, holds back those behind it. Two transactions that publish with the
        same keys in opposite order are a deadlock, as for any rows; a bulk sorts its keys.

        `headers`: texts and numbers, beside the attributes of CloudEvents. `eta`, `countdown`: do
        not publish it before. `using`: the alias of the database.
        """
        event = event_of(
            name,
            data,
            key=key,
            headers=headers,
            when={"eta": eta, "countdown": countdown},
            content_type=content_type,
        )
        rows = rows_of(event, destinations_of(to, self.settings), self._app)
        try:
            connection = self.database(name, using)
        except SynchronousOnlyOperation as exc:
            raise SynchronousOnlyOperation(EVENT_IN_ASYNC_CODE) from exc
        self._store_rows(connection, rows)
        return event.id

    async def apublish(self, *args: Any, **kwargs: Any) -> str:
        """`publish` for async code."""
        return await sync_to_async(self.publish)(*args, **kwargs)

    @contextlib.contextmanager
    def bulk(self, *, as_it_grows: bool = False) -> Iterator[None]:
        """Collect the calls of a block and write them at its end, unless it raises.

        `as_it_grows`: write each full chunk at once, instead of all rows at the end.
        """
        if block_may_be_suspended():
            yield
            return
        own = BulkBuffer(self._writer.write_all, self._buffer.get(), as_it_grows=as_it_grows)
        token = self._buffer.set(own)
        ended = False
        try:
            yield
            ended = True
        finally:
            with contextlib.suppress(ValueError):  # the block ends in another context
                self._buffer.reset(token)
            own.close(write=ended)

    def reschedule(
        self,
        task_id: str,
        *,
        eta: datetime | str | None = None,
        countdown: float | timedelta | None = None,
    ) -> bool:
        """Give a call that still waits another time. False if it is published, or gone.

        Part of the caller's transaction. Raises `OutboxError` if the call expires before then.
        """
        return self._changes.reschedule(task_id, eta, countdown)

    def send_now(self, task_id: str) -> bool:
        """Publish a call that still waits at the commit. False if it is published, or gone.

        Part of the caller's transaction.
        """
        return self._changes.send_now(task_id)

    def once(
        self, key: str, *, using: str | None = None, keep: timedelta | float | None = None
    ) -> AbstractContextManager[bool]:
        """A transaction around work that must not be done twice. `with` gives whether to do it.

        False if another transaction with this key has committed; one that is open is waited for.
        `using` and `keep` as for `@once`.
        """
        return once_in(self._app, key, using, keep)

    def can_not_store(self, using: str | None) -> bool:
        """Whether a call has failed, alone, because the database is away.

        Not in a transaction or a bulk, where other calls have failed with it.
        """
        connection = connections[using or write_alias()]
        depth = level(connection)
        if depth is None or depth > 0 or self._buffer.get() is not None:
            return False
        return connection.connection is None or not connection.is_usable()

    def cancel(self, task_ids: Sequence[str], in_doubt: Callable[[list[str]], None]) -> set[str]:
        """For `app.control.revoke()`: see `Changes.cancel`."""
        return self._changes.cancel(task_ids, in_doubt)

    def is_buffered(self, connection: BaseDatabaseWrapper, task_ids: set[str]) -> bool:
        """Whether one of the calls waits for the end of a bulk; ids as rows have them."""
        innermost = self._buffer.get()
        return innermost is not None and innermost.holds_any(connection, task_ids)

    def _write_buffered(self, connection: BaseDatabaseWrapper, task_ids: Sequence[str]) -> None:
        """Write the calls of the current bulk, so that those to be changed are in the table."""
        innermost = self._buffer.get()
        buffer = buffer_for(innermost, connection)
        if buffer is not None:
            buffer.flush(connection, write=True)
        if self.is_buffered(connection, set(map(stored_id, task_ids))):
            raise OutboxError(STILL_BUFFERED)

    def _check_transaction(self, connection: BaseDatabaseWrapper, task_name: str) -> None:
        if connection.in_atomic_block:  # nearly every call; the other checks cost more
            # Blocks of a TestCase are outside all others. As for `atomic(durable=True)`.
            if not is_of_testcase(atomic_blocks(connection)[-1]):
                return
        elif is_open(connection):
            return
        if self.in_beat:
            return
        if is_in_hook():  # its transaction is committed: refusing the call would lose it
            self._warn_of_hook(task_name)
            return
        if self._app.current_worker_task or is_command_line_call():
            return
        if self.settings.require_transaction:
            raise TransactionRequired(
                f"{task_name} can't be stored outside a transaction on database "
                f"{connection.alias!r}. Use transaction.atomic(), or unset "
                "CELERY_OUTBOX_REQUIRE_TRANSACTION."
            )
        if task_name not in self._warned:
            self._warned.add(task_name)
            log(
                "celery_outbox_not_in_transaction",
                task_name,
                connection.alias,
                task_name=task_name,
                database=connection.alias,
            )

    def _check_alias(self, alias: str, task_name: str) -> None:
        """Warn once of a database that no relay with these settings looks at."""
        if ("database", alias) in self._warned:
            return
        self._warned.add(("database", alias))
        if alias not in outbox_aliases(self._app.conf):
            log(
                "celery_outbox_unserved_database",
                task_name,
                alias,
                task_name=task_name,
                database=alias,
            )

    def _warn_of_hook(self, task_name: str) -> None:
        place = place_in_hook()
        if (task_name, place) not in self._warned:
            self._warned.add((task_name, place))
            log("celery_outbox_after_commit", task_name, place, task_name=task_name, place=place)

    def _row(
        self,
        task_name: str,
        task_id: str,
        producer: CapturingProducer,
        when: When | None,
        key: Key | None = None,
    ) -> Row:
        sealed = seal_captured(producer)
        redacted: tuple[str | None, str | None] = (None, None)
        redactor = self.settings.redactor
        if redactor is not None:
            redacted = redact(redactor, task_name, partial(copy_arguments, sealed, producer.body))
        name, uuid = stored_id(task_name), stored_id(task_id)
        context = self.settings.recorders.caller_context()
        return Row(uuid, name, *sealed, *redacted, *context, when, key)


def _replace_if_lost(connection: BaseDatabaseWrapper, *, aged: bool) -> None:
    """Close a broken connection, as Django does between requests and Celery between tasks.

    An open transaction is left alone: closing its connection would roll it back. A working session
    may hold the caller's locks and cursors; it is closed for its age only if `aged`.
    """
    if connection.connection is None or is_open(connection):
        return
    if aged:
        connection.close_if_unusable_or_obsolete()
    elif connection.is_usable():
        connection.errors_occurred = False
    else:
        connection.close()
