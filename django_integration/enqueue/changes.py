"""Changes of mind: calls that still wait are cancelled or get another time.

Everything happens on the caller's connection, so it is part of the caller's transaction and rolled
back with it. Every database that holds an outbox is looked at. `app.outbox` has these functions for
projects, and `app.control.revoke()` uses `cancel`. The statements are in `store/waiting.py`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections

from celery_outbox_steps import wakeups
from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.settings import read
from django_integration.enqueue.after_commit import run_after_commit
from django_integration.enqueue.hold import when_for
from django_integration.schema import DELIVERIES, TASKS
from django_integration.store.base import DIALECTS
from django_integration.store.session import Session, is_open, outbox_aliases
from django_integration.store.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import timedelta

    from django.db.backends.base.base import BaseDatabaseWrapper

NOT_IN_ASYNC_CODE = (
    "A call can't be changed from inside a running event loop, because Django's database access "
    "would block it. Use `await sync_to_async(app.outbox.reschedule)(...)` or "
    "`await sync_to_async(app.outbox.send_now)(...)`."
)


class Changes:
    """What `app.outbox` can do with calls that were stored before.

    `write_buffered` writes calls that wait for the end of a bulk on a connection; it raises if it
    can't, and one of the given tasks is among them.
    """

    def __init__(
        self, app: Any, write_buffered: Callable[[BaseDatabaseWrapper, Sequence[str]], None]
    ) -> None:
        self._app = app
        self._write_buffered = write_buffered

    def reschedule(self, task_id: str, eta: Any, countdown: float | timedelta | None) -> bool:
        when = when_for(eta=eta, countdown=countdown)
        _refuse_other_than_id(task_id)
        with _djangos_errors():
            found = [
                waiting.reschedule(task_id, when)
                for _, waiting in self._outboxes([task_id], wake=True)
            ]
        return any(found)

    def send_now(self, task_id: str) -> bool:
        _refuse_other_than_id(task_id)
        with _djangos_errors():
            found = [
                waiting.send_now([task_id]) for _, waiting in self._outboxes([task_id], wake=True)
            ]
        return any(found)

    def cancel(self, task_ids: Sequence[str], in_doubt: Callable[[list[str]], None]) -> set[str]:
        """The tasks whose rows were deleted.

        Raises `StoreError`, and Django's own error in a transaction: that can only be rolled back,
        and then the calls still wait.

        `in_doubt` is called after the commit with those of them whose message may have left: a
        relay that died, or lost its connection to the broker, may have sent it before.
        """
        try:
            return self._cancel(task_ids, in_doubt)
        except SynchronousOnlyOperation:
            # Celery's revoke works in async code, and blocks it too. There is no transaction there.
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(self._cancel_and_close, task_ids, in_doubt).result()
        except StoreError as error:
            if any(map(_is_in_transaction, outbox_aliases(self._app.conf))):
                raise (error.__cause__ or error) from None
            raise

    def _cancel(self, task_ids: Sequence[str], in_doubt: Callable[[list[str]], None]) -> set[str]:
        found: set[str] = set()
        for connection, waiting in self._outboxes(task_ids):
            cancelled = waiting.cancel(task_ids)
            found.update(cancelled)
            may_have_left = [task_id for task_id, sure in cancelled.items() if not sure]
            if may_have_left:
                run_after_commit(connection, partial(in_doubt, may_have_left))
        return found

    def _cancel_and_close(self, *args: Any) -> set[str]:
        try:
            return self._cancel(*args)
        finally:
            connections.close_all()  # of this thread

    def _outboxes(
        self, task_ids: Sequence[str], *, wake: bool = False
    ) -> Iterator[tuple[BaseDatabaseWrapper, Waiting]]:
        """Every outbox on the caller's connections. `wake` its relay after the commit."""
        conf = self._app.conf
        tables = (TASKS, DELIVERIES) if read(conf, "destinations") else (TASKS,)
        for alias in outbox_aliases(conf):
            connection = connections[alias]
            self._write_buffered(connection, task_ids)
            session = Session(alias, _borrow, connection=connection)
            for table in tables:
                yield connection, Waiting(session, DIALECTS[connection.vendor](), table)
                if wake:
                    run_after_commit(connection, partial(wakeups.wake, table.wake_up_name(alias)))


def _refuse_other_than_id(task_id: Any) -> None:
    if not isinstance(task_id, str):
        raise TypeError(f"Give the id of one task, a text, and not {task_id!r}.")


def _is_in_transaction(alias: str) -> bool:
    connection = connections[alias]
    return connection.connection is not None and is_open(connection)


def _borrow(_: Session) -> None:
    """The caller's connection is used as it is."""


@contextmanager
def _djangos_errors() -> Iterator[None]:
    """In a transaction of the project, database errors are Django's. In async code, the error says
    what to do instead."""
    try:
        yield
    except StoreError as error:
        raise (error.__cause__ or error) from None
    except SynchronousOnlyOperation as error:
        raise SynchronousOnlyOperation(NOT_IN_ASYNC_CODE) from error
