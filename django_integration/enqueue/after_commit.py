"""What a transaction stored, and what happens once that is committed.

One hook per `atomic()` block, however many calls it makes in a row. Django drops the hook together
with the block, and so with the rows. Of a rollback to a savepoint that was made by hand it knows
nothing: the hook stays, and if the NOTIFY was rolled back, the relay finds later rows by polling.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_integration.enqueue.rows import Row


class AfterCommit:
    """An on_commit hook with a memory."""

    def __init__(self, run: Callable[[AfterCommit], None], connection: BaseDatabaseWrapper) -> None:
        self.run = run
        self.connection = connection
        self.names: Counter[str] = Counter()
        self.notified = False
        """Did one of the calls send a NOTIFY? One is enough for all of them."""
        self.ran = False
        self.began = time.monotonic()
        self.__qualname__ = "celery_outbox"  # Django logs it, should `run` fail

    def add(self, rows: list[Row], *, notified: bool) -> None:
        is_new = not self.names
        self.names.update(row.task_name for row in rows)
        self.notified = self.notified or notified
        connection = self.connection
        if is_new and (connection.in_atomic_block or connection.get_autocommit()):
            connection.on_commit(self, robust=True)

    def __call__(self) -> None:
        self.ran = True
        self.run(self)


def after_commit(
    connection: BaseDatabaseWrapper, run: Callable[[AfterCommit], None]
) -> AfterCommit:
    """The hook that will live and die with what is written now: the newest one, or a new one.

    One that ran may still be there: tests run the hooks of transactions that never commit.
    """
    last = _last_hook(connection)
    if isinstance(last, AfterCommit) and last.run == run and not last.ran:
        return last
    return AfterCommit(run, connection)


def _last_hook(connection: BaseDatabaseWrapper) -> Any:
    if not connection.run_on_commit:
        return None
    savepoints, hook, *_ = connection.run_on_commit[-1]
    return hook if savepoints == set(connection.savepoint_ids) else None
