"""The on_commit hook: what a transaction stored, and what is done once it is committed.

One hook per `atomic()` block, however many calls it makes in a row. If the block is rolled back,
Django drops the hook as the database drops the rows. Django does not notice a rollback to a
savepoint that the caller created with SQL: the hook stays, and if the NOTIFY was rolled back, the
relay finds later rows by polling. `writer.py` creates the hooks and does the work after the commit.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from django_integration.upstream.django import commit_hooks, last_commit_hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_integration.enqueue.rows import Row

REMEMBERED = 1000
"""Of how many calls a block keeps the ids: enough for one that waits for its last calls."""


class AfterCommit:
    """An on_commit hook that counts the rows of its block."""

    def __init__(self, run: Callable[[AfterCommit], None], connection: BaseDatabaseWrapper) -> None:
        self.run = run
        self.connection = connection
        self.names: Counter[str] = Counter()
        self.task_ids: deque[str] = deque(maxlen=REMEMBERED)
        """The ids of the last rows."""
        self.events: dict[str, Counter[str]] = {}
        """The names of messages for destinations, by destination."""
        self.notified = False
        """Whether one of the calls sent a NOTIFY. One is enough for all of them."""
        self.notified_destinations: set[str] = set()
        """The destinations for whose relays a NOTIFY was sent."""
        self.registered = self.ran = False
        self.began = time.monotonic()
        self.first_due = self.first_due_of_events = float("inf")
        """When the first of the rows is due, by this machine's monotonic clock: of those for the
        app's own broker, and of those for destinations. Infinite: there are none."""
        self.__qualname__ = "celery_outbox"  # Django logs it if `run` fails

    def add(self, rows: list[Row], *, notified: bool, due_in: float) -> None:
        """Rows of one table were written; none, if calls were dropped for one that waits."""
        for row in rows:
            if row.destination is None:
                self.names[row.task_name] += 1
            else:
                self.events.setdefault(row.destination, Counter())[row.task_name] += 1
            self.task_ids.append(row.task_id)
        self.notified = self.notified or notified
        due_at = time.monotonic() + due_in
        if rows and rows[0].destination is not None:
            self.first_due_of_events = min(self.first_due_of_events, due_at)
        else:
            self.first_due = min(self.first_due, due_at)
        if not self.registered and _has_hooks(self.connection):
            self.registered = True
            self.connection.on_commit(self, robust=True)

    def __call__(self) -> None:
        self.ran = True
        self.run(self)


def after_commit(
    connection: BaseDatabaseWrapper, run: Callable[[AfterCommit], None]
) -> AfterCommit:
    """The hook for rows that are written now: the newest one of this atomic block, or a new one.

    A hook that ran may still be registered: tests run hooks of transactions that never commit.
    """
    last = last_commit_hook(connection)
    if isinstance(last, AfterCommit) and last.run == run and not last.ran:
        return last
    return AfterCommit(run, connection)


def uncommitted(connection: BaseDatabaseWrapper, task_ids: set[str]) -> set[str]:
    """Those of the tasks that the open transaction has stored, as far as it remembers them."""
    found: set[str] = set()
    for hook in commit_hooks(connection):
        if isinstance(hook, AfterCommit):
            found |= task_ids.intersection(hook.task_ids)
    return found


def run_after_commit(connection: BaseDatabaseWrapper, function: Callable[[], None]) -> None:
    """Call a function after the commit; at once, if Django can't know when that is."""

    def hook() -> None:  # Django logs its name if it fails, and a partial has none
        function()

    if _has_hooks(connection):
        connection.on_commit(hook, robust=True)
    else:
        hook()


def _has_hooks(connection: BaseDatabaseWrapper) -> bool:
    """Not in a transaction that the caller ends with `commit()`."""
    return connection.in_atomic_block or connection.get_autocommit()
