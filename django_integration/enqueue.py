"""Enqueue: a captured message becomes a row in the caller's own transaction, or none at all.

Decides which calls bypass the outbox, which database a row belongs to and whether it may be written
outside of a transaction. The rows of `outbox_bulk()` and of groups share one INSERT. After the
commit it rings the relay's bell and counts. The next step of the path is the relay's claim.
"""

from __future__ import annotations

import contextlib
import copy
import fnmatch
import logging
import time
from collections import Counter
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, router
from kombu.utils.json import loads

from celery_outbox_steps import bell, metrics, tracing
from celery_outbox_steps.config import load, read
from celery_outbox_steps.envelope import Sealed, ascii_text, seal
from celery_outbox_steps.errors import OutboxError
from django_integration import context, signals
from django_integration.bulk import Gathering
from django_integration.redaction import Redactor, redact
from django_integration.rows import Row, insert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_integration.capture import CapturingProducer

logger = logging.getLogger("celery_outbox")

NOTIFY_INTERVAL = 0.05
"""Seconds between two NOTIFYs of a process: each takes a global lock in PostgreSQL at commit."""

USE_ASEND_TASK = (
    "A task can't be stored from inside a running event loop, because Django's database access "
    "would block it. Use `await app.asend_task(name, args, kwargs)` here, or make the call from "
    "`sync_to_async`."
)


class TransactionRequired(OutboxError, RuntimeError):
    """A task was called outside of a transaction, and `require_transaction` forbids that."""


class Enqueuer:
    """The enqueue side of one app, with its settings read and validated once."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._require_transaction = read(app.conf, "require_transaction")
        self._notify = read(app.conf, "notify")
        self._redactor: Redactor | None = load(app.conf, "redactor")
        self._meter = metrics.meter_for(app)
        names = read(app.conf, "exclude_tasks")
        self._excluded = frozenset(names)
        self._patterns = [name for name in names if any(sign in name for sign in "*?[")]
        keys = read(app.conf, "structlog_context_keys")
        self._catch = partial(
            context.catch,
            structlog=read(app.conf, "structlog_enabled"),
            keys=None if keys is None else frozenset(keys),
        )
        self._warned: set[str] = set()
        self._notified: dict[str, float] = {}
        self._gathering: ContextVar[Gathering | None] = ContextVar("gathering", default=None)
        self.in_beat = False

    def excludes(self, task_name: str) -> bool:
        """Whether `CELERY_OUTBOX_EXCLUDE_TASKS` sends this task directly to the broker."""
        return task_name in self._excluded or any(
            fnmatch.fnmatchcase(task_name, pattern) for pattern in self._patterns
        )

    def database(self, task_name: str, using: str | None) -> BaseDatabaseWrapper:
        """The connection that a call's row belongs to. Refuses what could not be stored there."""
        connection = connections[using or write_alias()]
        if self.in_beat and not connection.in_atomic_block:
            # As Django does between requests, and Celery between tasks: here nobody else would.
            connection.close_if_unusable_or_obsolete()
        try:
            connection.ensure_connection()
        except SynchronousOnlyOperation as exc:
            raise SynchronousOnlyOperation(USE_ASEND_TASK) from exc
        self._check_transaction(connection, task_name)
        return connection

    def store(
        self,
        connection: BaseDatabaseWrapper,
        task_name: str,
        task_id: str,
        producer: CapturingProducer,
    ) -> None:
        """Write the captured message as a row, now or at the end of the current bulk."""
        row = self._row(task_name, task_id, producer)
        gathering = self._gathering.get()
        if gathering is not None and gathering.takes(connection):
            gathering.add(connection.alias, [row])
        else:
            self._write(connection, [row])

    def store_apart(
        self, using: str | None, task_name: str, task_id: str, producer: CapturingProducer
    ) -> None:
        """Write the row on a connection of its own, whatever the caller's transaction does."""
        connection = connections.create_connection(using or write_alias())
        try:
            self._write(connection, [self._row(task_name, task_id, producer)])
        finally:
            connection.close()

    @contextlib.contextmanager
    def bulk(self) -> Iterator[None]:
        """Gather the calls of a block. Nothing is written if it raises."""
        outer, own = self._gathering.get(), Gathering()
        token = self._gathering.set(own)
        try:
            yield
        finally:
            own.is_open = False
            self._gathering.reset(token)
        for alias, rows in own.rows.items():
            if outer is not None and outer.takes(connections[alias]):
                outer.add(alias, rows)
            else:
                self._write(connections[alias], rows)

    def _check_transaction(self, connection: BaseDatabaseWrapper, task_name: str) -> None:
        if connection.in_atomic_block or self.in_beat or self._app.current_worker_task:
            return
        if self._require_transaction:
            raise TransactionRequired(
                f"{task_name} was called outside of a transaction on database "
                f"{connection.alias!r}. Call it inside transaction.atomic(), or unset "
                "CELERY_OUTBOX_REQUIRE_TRANSACTION."
            )
        if task_name not in self._warned:
            self._warned.add(task_name)
            logger.warning(
                "celery_outbox_not_in_transaction: %s was called outside of a transaction on "
                "database %r. It is stored durably, but not together with your data. Said once "
                "per task name.",
                task_name,
                connection.alias,
                extra={
                    "event": "celery_outbox_not_in_transaction",
                    "task_name": task_name,
                    "database": connection.alias,
                },
            )

    def _row(self, task_name: str, task_id: str, producer: CapturingProducer) -> Row:
        sealed = _seal(producer)
        redacted: tuple[str | None, str | None] = (None, None)
        if self._redactor is not None:
            redacted = redact(self._redactor, task_name, partial(_copies, sealed, producer.body))
        return Row(_column(task_id), _column(task_name), *sealed, *redacted, *self._context())

    def _context(self) -> context.Context:
        """Nice to have, so whatever is wrong with it must not stop the call."""
        try:
            return self._catch()
        except Exception as exc:  # noqa: BLE001  structlog's values are anybody's objects
            logger.warning(
                "celery_outbox_context_failed: %s; the call is stored without its context",
                type(exc).__name__,
                extra={"event": "celery_outbox_context_failed"},
            )
            return context.Context()

    def _write(self, connection: BaseDatabaseWrapper, rows: list[Row]) -> None:
        done = self._hook_of(connection) or AfterCommit(self._committed, connection.alias)
        notify = not done.notified and self._may_notify(connection.alias)
        try:
            with tracing.storing(rows):
                insert(connection, rows, notify=notify)
        except SynchronousOnlyOperation as exc:
            raise SynchronousOnlyOperation(USE_ASEND_TASK) from exc
        signals.emit_created(rows, type(self._app))
        is_new = not done.names
        done.add(rows, notified=notify)
        if is_new and (connection.in_atomic_block or connection.get_autocommit()):
            connection.on_commit(done, robust=True)

    def _hook_of(self, connection: BaseDatabaseWrapper) -> AfterCommit | None:
        """Ring, notify and count once per transaction, however many calls it makes in a row."""
        last = _last_hook(connection)
        return last if isinstance(last, AfterCommit) and last.run == self._committed else None

    def _may_notify(self, alias: str) -> bool:
        since = time.monotonic() - self._notified.get(alias, float("-inf"))
        return bool(self._notify and since >= NOTIFY_INTERVAL)

    def _committed(self, done: AfterCommit) -> None:
        if done.notified:  # counted only now: a NOTIFY that is not committed wakes nobody
            self._notified[done.alias] = time.monotonic()
        bell.ring(done.alias)
        if self._meter is not None:
            counts = {("messages.enqueued", name): count for name, count in done.names.items()}
            self._meter.messages(counts, done.alias)


class AfterCommit:
    """What a transaction stored, and what to call when that is committed."""

    def __init__(self, run: Callable[[AfterCommit], None], alias: str) -> None:
        self.run = run
        self.alias = alias
        self.names: Counter[str] = Counter()
        self.notified = False
        self.__qualname__ = "celery_outbox"  # Django logs it, should `run` fail

    def add(self, rows: list[Row], *, notified: bool) -> None:
        self.names.update(row.task_name for row in rows)
        self.notified = self.notified or notified

    def __call__(self) -> None:
        self.run(self)


def _last_hook(connection: BaseDatabaseWrapper) -> Any:
    """The newest on_commit hook, if it will live and die with what is written now."""
    if not connection.run_on_commit:
        return None
    savepoints, hook, *_ = connection.run_on_commit[-1]
    return hook if savepoints == set(connection.savepoint_ids) else None


def write_alias() -> str:
    """The database that the router names for writing the outbox."""
    from django_integration.models import CeleryOutbox

    return router.db_for_write(CeleryOutbox)


def _seal(producer: CapturingProducer) -> Sealed:
    message, body = producer.messages[0], producer.body
    if len(producer.messages) > 1:
        message.event = producer.messages[1]
    # Protocol 2 has the times and the reprs in the headers, protocol 1 in the body.
    fields = body if isinstance(body, dict) else message.headers
    args, kwargs = _arguments(body)
    return seal(
        message,
        argsrepr=fields.get("argsrepr") or repr(args),
        kwargsrepr=fields.get("kwargsrepr") or repr(kwargs),
        eta=fields.get("eta"),
        expires=fields.get("expires"),
    )


def _arguments(body: Any) -> tuple[Any, Any]:
    return (body["args"], body["kwargs"]) if isinstance(body, dict) else (body[0], body[1])


def _copies(sealed: Sealed, body: Any) -> tuple[Any, Any]:
    """The arguments once more, as a worker would get them."""
    if sealed.payload is None:
        return loads(sealed.args), loads(sealed.kwargs)
    args, kwargs = _arguments(body)
    return copy.deepcopy(args), copy.deepcopy(kwargs)


def _column(text: str) -> str:
    """For looking up only, so it may be cut; the message has the name and id in full."""
    return ascii_text(text)[:255]
