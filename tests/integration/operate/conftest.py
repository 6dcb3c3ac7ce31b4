"""An app with an outbox on PostgreSQL and a queue of its own in the memory transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import connection

from celery_outbox_steps.fleet import RELAYING, STANDING_BY, Member
from celery_outbox_steps.messages import Dead, Published
from celery_outbox_steps.store import DeadLetters
from django_integration import OutboxCelery
from django_integration.schema import CALL_COLUMNS, Row
from django_integration.store import DjangoStore
from django_integration.store.failed_tasks import Failure
from tests.proj.fixtures import databases, postgresql, use_database

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["databases", "postgresql", "use_database"]


@pytest.fixture
def app(postgresql: None, settings: Any) -> Any:
    app = OutboxCelery("operate", broker="memory://", set_as_current=False)
    app.conf.task_default_queue = f"operate-{uuid4().hex[:8]}"
    settings.CELERY_OUTBOX_APP = app
    with connection.cursor() as cursor:
        for table in ("dead_letter", "relay", "pause"):
            cursor.execute(f"DELETE FROM celery_outbox_{table}")
    return app


@pytest.fixture
def store(app: Any) -> Iterator[DjangoStore]:
    store = DjangoStore("default", retention=3600)
    yield store
    store.close()


@pytest.fixture
def join(store: DjangoStore) -> Any:
    """`join("a", "relaying")`: a relay of the worker celery@a checks in."""

    def join(name: str, state: str = RELAYING, **about: Any) -> None:
        member = Member(name, f"celery@{name}", "1.0", state, **about)
        store.check_in(member, relays=2, wants_slot=state != STANDING_BY)

    return join


@pytest.fixture
def bury(app: Any, store: DjangoStore) -> Any:
    """`bury(3, "a")`: three dead letters of a task, and their ids."""

    def bury(count: int, task_name: str = "operate.task") -> list[int]:
        for number in range(count):
            app.send_task(task_name, (number,))
        rows = store.claim(count, 60, "undertaker")
        store.settle([Dead(row, "NotFound: no exchange", 1) for row in rows], "undertaker")
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM celery_outbox_dead_letter WHERE task_name = %s", [task_name]
            )
            return [row[0] for row in cursor.fetchall()]

    return bury


@pytest.fixture
def keep_failed(store: DjangoStore) -> Any:
    """`keep_failed("a")`: a dead letter of a task that failed in a worker, and its id."""

    def keep_failed(task_name: str = "operate.task", reason: str = "ValueError: no") -> int:
        empty = dict.fromkeys(CALL_COLUMNS)
        call = {"task_id": str(uuid4()), "args": "[]", "kwargs": "{}", "options": "{}"}
        row = Row(**{**empty, **call, "task_name": task_name})
        store.keep_failed_task(row, Failure(reason, "Traceback", 3))
        return store.list_dead_letters(DeadLetters(), 1)[0].id

    return keep_failed


@pytest.fixture
def publish(app: Any, store: DjangoStore) -> Any:
    """`publish(3)`: three rows that were published and are kept."""

    def publish(count: int) -> None:
        for number in range(count):
            app.send_task("operate.task", (number,))
        rows = store.claim(count, 60, "relay")
        store.settle([Published(row) for row in rows], "relay")

    return publish
