"""An app with a queue of its own, rows to relay, and a count of what the database is asked."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import kombu
import pytest
from django.db import transaction
from kombu import Connection

from celery_outbox_steps.observe.recorders import recorders_for
from celery_outbox_steps.publishers import publisher_for
from celery_outbox_steps.relay.tick import Relay
from celery_outbox_steps.settings import RelayConfig
from django_integration import OutboxCelery
from django_integration.store import DjangoStore
from tests.harness.databases import rabbitmq_url, redis_url
from tests.proj.fixtures import databases, postgresql, use_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery import Celery

__all__ = ["databases", "postgresql", "use_database"]

VENDORS = ("postgresql", "mysql", "sqlite")
needs_batches = pytest.mark.skipif(
    kombu.VERSION[:2] < (5, 7), reason="older kombu sends to Redis one by one"
)


@pytest.fixture
def make_app() -> Iterator[Callable[..., Any]]:
    """`make_app(url)`: a fresh app with a task `noop`, perhaps `through` a port of ours.

    Its queue is deleted afterwards.
    """
    with ExitStack() as stack:

        def make(
            broker: str = "", cls: type[Celery] = OutboxCelery, through: int | None = None
        ) -> Any:
            broker = broker or rabbitmq_url()
            queue = f"budgets-{uuid4().hex[:8]}"
            url = broker if through is None else replace_address(broker, through)
            app = cls("budgets", broker=url, set_as_current=False)
            app.conf.update(task_default_queue=queue, task_ignore_result=True)
            stack.callback(app.close)
            stack.callback(_delete_queue, broker, queue)

            @app.task(name="budgets.noop", shared=False)
            def noop(*args: Any) -> None:
                """Nothing."""

            return app

        yield make


@pytest.fixture
def app(make_app: Callable[..., Any]) -> Any:
    return make_app()


@pytest.fixture
def redis_app(make_app: Callable[..., Any]) -> Any:
    return make_app(redis_url(10))


@pytest.fixture
def relay_of(request: pytest.FixtureRequest) -> Callable[..., Relay]:
    """`relay_of(app)`: a relay at work on the default database."""

    def make(app: Any, **config: Any) -> Relay:
        settings = RelayConfig(**config)
        publisher = publisher_for(app, settings.declare)
        relay = Relay(
            app,
            DjangoStore("default"),
            publisher,
            settings,
            "budgets",
            recorders=recorders_for(app),
        )
        request.addfinalizer(relay.close)
        return relay

    return make


def enqueue(app: Any, count: int) -> None:
    """Commit `count` rows."""
    with transaction.atomic(), app.outbox_bulk():
        for number in range(count):
            app.tasks["budgets.noop"].delay(number)


@contextmanager
def counted(connection: Any) -> Iterator[list[str]]:
    """The statements that go through one of Django's connections."""
    statements: list[str] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        statements.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        yield statements


def replace_address(url: str, port: int) -> str:
    """The same broker by way of a local port."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{port}"))


def _delete_queue(broker: str, queue: str) -> None:
    with Connection(broker) as connection:
        connection.default_channel.queue_delete(queue)
