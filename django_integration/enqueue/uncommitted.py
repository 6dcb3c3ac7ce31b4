"""Refuses to wait for the result of a call that the caller has not committed.

`result.get()` would wait for ever: nothing publishes the row before the commit, and the commit
comes after the wait. Looks at the connections of the calling thread and at the bulk it is in; what
another process or thread has stored is not its business. `celery_hooks/result_backends.py` asks
before a result is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections

from celery_outbox_steps.envelope import stored_id
from celery_outbox_steps.errors import OutboxError
from django_integration.enqueue.after_commit import uncommitted
from django_integration.upstream.django import is_in_testcase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

IN_A_TRANSACTION = (
    "This result can't come yet: its call is part of the open transaction on database {!r}, and is "
    "published after the commit. Wait for it after the `with transaction.atomic()` block."
)
IN_A_TESTCASE = (
    "This result can't come: nothing is committed on database {!r} in a Django TestCase, so no "
    "worker gets the call. Run the stored tasks with `drain_outbox()`, which returns their "
    "results (without pytest: `Drain(Outbox())()` of django_integration.testing), or use a "
    "TransactionTestCase and a worker."
)
IN_A_BULK = (
    "This result can't come yet: its call is stored at the end of the outbox_bulk() block. Wait "
    "for it after that."
)


def refuse_to_wait(app: Any, result: Any) -> None:
    """Raise `OutboxError` if the caller's own transaction or bulk holds the call back."""
    why = _held_back_by(app, {stored_id(each) for each in _task_ids(result)})
    if why is not None and not result.ready():  # the id may be of an earlier call, too
        raise OutboxError(why)


def _held_back_by(app: Any, task_ids: set[str]) -> str | None:
    for connection in connections.all(initialized_only=True):
        if uncommitted(connection, task_ids):
            return _in_transaction(connection)
        if "outbox" in vars(app) and app.outbox.is_buffered(connection, task_ids):
            return IN_A_BULK
    return None


def _in_transaction(connection: BaseDatabaseWrapper) -> str:
    text = IN_A_TESTCASE if is_in_testcase(connection) else IN_A_TRANSACTION
    return text.format(connection.alias)


def _task_ids(result: Any) -> Iterator[str]:
    """The ids of the tasks of a result or a set of results, and of those that they come after."""
    while result is not None:
        if hasattr(result, "results"):
            for each in result.results:
                yield from _task_ids(each)
        else:
            yield str(result.id)
        result = result.parent
