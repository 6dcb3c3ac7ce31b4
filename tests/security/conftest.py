"""A relay of our own on a real database and a real broker, one tick at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import connection
from kombu import Connection, Exchange, Queue

from celery_outbox_steps.observe.recorders import recorders_for
from celery_outbox_steps.publishers import publisher_for
from celery_outbox_steps.relay.tick import Relay
from celery_outbox_steps.settings import RelayConfig
from django_integration import OutboxCelery
from django_integration.schema import TABLES
from django_integration.store import DjangoStore
from tests import helpers
from tests.proj.fixtures import databases, postgresql, use_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["databases", "postgresql", "use_database"]

COLUMNS = ("task_id", "task_name", "args", "kwargs", "options", "payload", "schema_version")


@pytest.fixture(params=["postgresql", "mysql", "sqlite"])
def any_database(request: pytest.FixtureRequest, use_database: Callable[..., None]) -> str:
    """The default database is each of them in turn."""
    vendor: str = request.param
    use_database(vendor)
    _empty()
    return vendor


@pytest.fixture
def app() -> Iterator[Any]:
    """An outbox app on RabbitMQ, with a queue of its own."""
    url = helpers.require_service("rabbitmq").url
    app = OutboxCelery("security", broker=url, set_as_current=False)
    app.conf.task_default_queue = f"outbox-security-{uuid4().hex[:8]}"
    app.conf.accept_content = ["json"]
    yield app
    with Connection(url) as broker:
        broker.default_channel.queue_delete(app.conf.task_default_queue)
        broker.default_channel.exchange_delete(app.conf.task_default_queue)
    app.close()


@dataclass
class Bench:
    """One relay, driven by hand."""

    app: Any
    store: DjangoStore
    relay: Relay

    @property
    def queue(self) -> str:
        name: str = self.app.conf.task_default_queue
        return name

    def call(self, name: str = "neighbour", *args: Any, **options: Any) -> str:
        task_id: str = self.app.send_task(name, args, **options).id
        return task_id

    def insert(self, **columns: Any) -> str:
        """A row that no enqueue would write."""
        task_id = str(uuid4())
        values = {
            "task_id": task_id, "task_name": "hostile", "args": "[]", "kwargs": "{}",
            "options": "{}", "payload": None, "schema_version": 1, **columns,
        }  # fmt: skip
        now = self.store._dialect.now
        marks = ", ".join(["%s"] * len(COLUMNS))
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO celery_outbox ({', '.join(COLUMNS)}, created_at, due_at, retries)"
                f" VALUES ({marks}, {now}, {now}, 0)",
                [values[name] for name in COLUMNS],
            )
        return task_id

    def tick(self) -> Any:
        return self.relay.run_once()

    def rows(self) -> set[str]:
        return {row[0] for row in self.sql("SELECT task_id FROM celery_outbox")}

    def dead(self) -> dict[str, str]:
        """Dead letters: their ids and why."""
        return dict(self.sql("SELECT task_id, failure_reason FROM celery_outbox_dead_letter"))

    def sql(self, text: str, params: Any = ()) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(text, params)
            return list(cursor.fetchall())

    def arrived(self) -> list[Any]:
        """The messages in the queue, taken out of it, as they are."""
        found: list[Any] = []
        with Connection(self.app.conf.broker_url) as broker:
            queue = Queue(self.queue, Exchange(self.queue), self.queue)(broker.default_channel)
            queue.declare()
            while (message := queue.get(no_ack=True, accept=[])) is not None:
                found.append(message)
        return found


@pytest.fixture
def bench_on(app: Any) -> Iterator[Callable[[], Bench]]:
    """`bench_on()`, once the test has chosen its database."""
    stores: list[DjangoStore] = []

    def build() -> Bench:
        store = DjangoStore("default", notify=False)
        stores.append(store)
        config = RelayConfig(send_timeout=10, max_retries=2, backoff_time=0.01, max_backoff=0.02)
        relay = Relay(
            app, store, publisher_for(app, True), config, "security", recorders=recorders_for(app)
        )
        return Bench(app, store, relay)

    yield build
    for store in stores:
        store.close()


@pytest.fixture
def bench(postgresql: None, bench_on: Callable[[], Bench]) -> Bench:
    _empty()
    return bench_on()


def _empty() -> None:
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"DELETE FROM {table}")
