"""Tasks that are delivered as a worker would: Celery's own tracer, in this process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import current_app
from celery.app.trace import build_tracer
from django.db import connections

from django_integration import OutboxCelery
from tests.proj.fixtures import databases, postgresql, use_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["databases", "postgresql", "use_database"]

VENDORS = [
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mysql", marks=pytest.mark.mysql),
    "sqlite",
]


@pytest.fixture(params=VENDORS)
def database(request: Any, use_database: Callable[..., None]) -> str:
    """The default database, on every vendor."""
    use_database(request.param)
    vendor: str = request.param
    return vendor


@pytest.fixture
def app() -> Iterator[Any]:
    app = OutboxCelery("inbox", set_as_current=False, broker="memory://")
    app.conf.task_acks_late = app.conf.task_reject_on_worker_lost = True
    before = current_app._get_current_object()
    app.set_current()  # Celery looks for it where a signature names no app
    yield app
    before.set_current()
    app.close()


@pytest.fixture
def effects(database: str) -> Iterator[Effects]:
    with table_of_effects() as made:
        yield made


class Effects:
    """A table of the project's: what tasks have done."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def add(self, name: Any) -> None:
        self.run("INSERT INTO effects VALUES (%s)", [str(name)])

    def all(self) -> list[str]:
        return [name for (name,) in self.run("SELECT name FROM effects")]

    def run(self, sql: str, params: Any = ()) -> list[Any]:
        with connections[self._alias].cursor() as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall()) if cursor.description else []


@contextmanager
def table_of_effects(alias: str = "default") -> Iterator[Effects]:
    effects = Effects(alias)
    effects.run("CREATE TABLE effects (name VARCHAR(255))")
    try:
        yield effects
    finally:
        effects.run("DROP TABLE effects")


def deliver(task: Any, *args: Any, task_id: str | None = None, **request: Any) -> Any:
    """What the tracer returns for one delivery: `retval` and `info` (None if it succeeded)."""
    tracer = build_tracer(task.name, task, app=task.app)
    uuid = task_id or uuid4().hex
    delivery = {"id": uuid, "task": task.name, "delivery_info": {}, "headers": {}, **request}
    return tracer(uuid, args, {}, delivery)


def entries(alias: str = "default") -> list[tuple[Any, ...]]:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT inbox_key, task_name, duplicates FROM celery_outbox_inbox")
        return list(cursor.fetchall())
