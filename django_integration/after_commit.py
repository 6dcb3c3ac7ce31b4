"""What a transaction stored, and what happens once that is committed.

One hook per transaction, however many calls it makes in a row. Django drops the hook together with
the savepoint or transaction that it was registered in, and so with the rows.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_integration.rows import Row


class AfterCommit:
    """An on_commit hook with a memory."""

    def __init__(self, run: Callable[[AfterCommit], None], connection: BaseDatabaseWrapper) -> None:
        self.run = run
        self.connection = connection
        self.names: Counter[str] = Counter()
        self.notified = False
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
        self.run(self)


def after_commit(
    connection: BaseDatabaseWrapper, run: Callable[[AfterCommit], None]
) -> AfterCommit:
    """The hook that will live and die with what is written now: the newest one, or a new one."""
    last = _last_hook(connection)
    if isinstance(last, AfterCommit) and last.run == run:
        return last
    return AfterCommit(run, connection)


def _last_hook(connection: BaseDatabaseWrapper) -> Any:
    if not connection.run_on_commit:
        return None
    savepoints, hook, *_ = connection.run_on_commit[-1]
    return hook if savepoints == set(connection.savepoint_ids) else None
