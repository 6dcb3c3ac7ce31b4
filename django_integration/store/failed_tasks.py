"""A task that failed in a worker becomes a dead letter of the kind "task", in one INSERT.

The message must be whole, as a call stores it: a replay moves it into the outbox like any other
dead letter (`maintenance.py`). `celery_hooks/failed_tasks.py` calls it.
"""

# ruff: noqa: S608  SQL text is joined from our own names; values are always parameters
from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from celery_outbox_steps.store import TASK
from django_integration.schema import DEAD_LETTER, INSERT_NOW, MESSAGE_COLUMNS

if TYPE_CHECKING:
    from django_integration.schema import Row
    from django_integration.store.dialect import Dialect
    from django_integration.store.session import Session


class Failure(NamedTuple):
    """Why and how often a task failed."""

    reason: str
    traceback: str
    runs: int
    """How often it ran: once, and once for each retry."""


def insert_failed_task(session: Session, dialect: Dialect, row: Row, failure: Failure) -> None:
    """Write the dead letter in the connection's current transaction, if it is in one."""
    columns = [name for name in MESSAGE_COLUMNS if name in row._fields]
    now = INSERT_NOW[dialect.vendor]
    session.open()
    dialect.learn_encoding(session)  # it may be the task's own connection
    session.run(
        f"INSERT INTO {DEAD_LETTER} ({', '.join(columns)}, created_at, dead_at,"
        " retries, failure_reason, traceback, kind)"
        f" VALUES ({', '.join(['%s'] * len(columns))}, {now}, {now}, %s, %s, %s, '{TASK}')",
        [
            *(getattr(row, name) for name in columns),
            failure.runs,
            dialect.storable_text(failure.reason),
            dialect.storable_text(failure.traceback),
        ],
    )
