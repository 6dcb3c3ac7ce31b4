"""Any other transport: one by one, lazily, through kombu's public API."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu import Queue, pools

from celery_outbox_steps.classify import is_permanent
from celery_outbox_steps.errors import Interrupted
from celery_outbox_steps.publishers import publisher_for
from celery_outbox_steps.publishers.generic import GenericPublisher
from tests.integration.publishers.conftest import task_message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def app() -> Iterator[Celery]:
    yield Celery("generic", broker="memory://", set_as_current=False)
    pools.reset()


@pytest.fixture
def queue() -> Queue:
    return Queue(f"generic-{uuid.uuid4().hex[:8]}")


def arrived(app: Celery, queue: Queue) -> list[Any]:
    with app.connection_for_write() as connection:
        bound = queue(connection.default_channel)
        bound.declare()
        return list(iter(lambda: bound.get(no_ack=True), None))


def test_messages_arrive_in_order(app: Celery, queue: Queue) -> None:
    publisher = publisher_for(app)
    assert isinstance(publisher, GenericPublisher)
    messages = [task_message(queue.name, declare=(queue,)) for _ in range(20)]
    assert list(publisher.publish(messages, 5)) == [(n, None) for n in range(20)]
    assert [each.headers["id"] for each in arrived(app, queue)] == [
        each.headers["id"] for each in messages
    ]
    publisher.close()


def test_it_is_lazy(app: Celery, queue: Queue) -> None:
    messages = [task_message(queue.name, declare=(queue,)) for _ in range(20)]
    receipts = publisher_for(app).publish(messages, 5)
    for _ in range(3):
        next(receipts)
    receipts.close()
    assert len(arrived(app, queue)) == 3


def test_it_stops_when_time_is_up(app: Celery, queue: Queue) -> None:
    messages = [task_message(queue.name, declare=(queue,)) for _ in range(20)]
    receipts = list(publisher_for(app).publish(messages, 0))
    assert [tuple(each) for each in receipts] == [(0, None)]
    assert len(arrived(app, queue)) == 1


def test_the_next_batch_gets_a_connection_after_an_abandoned_one(app: Celery, queue: Queue) -> None:
    app.conf.broker_pool_limit = 1
    publisher = publisher_for(app)
    for _ in range(3):
        receipts = publisher.publish([task_message(queue.name, declare=(queue,))] * 2, 1)
        next(receipts)
        receipts.close()
    assert len(arrived(app, queue)) == 3


def test_one_that_can_not_be_stored_fails_alone(tmp_path: Path, queue: Queue) -> None:
    folder = {"data_folder_in": str(tmp_path), "data_folder_out": str(tmp_path)}
    app = Celery(
        "files", broker="filesystem://", broker_transport_options=folder, set_as_current=False
    )
    messages = [task_message(queue.name, declare=(queue,)) for _ in range(5)]
    messages[2].headers["value"] = object()
    messages[3].properties["expiration"] = "1001"
    errors = [error for _, error in publisher_for(app).publish(messages, 5)]
    assert [n for n, error in enumerate(errors) if error] == [2]
    assert is_permanent(errors[2])  # type: ignore[arg-type]
    texts = [path.read_text() for path in tmp_path.glob("*.msg")]
    stored = [json.loads(text) for text in texts if text]  # kombu leaves an empty file behind
    assert len(stored) == 4
    assert [
        each["properties"]["expiration"] for each in stored if "expiration" in each["properties"]
    ] == ["1001"]
    pools.reset()


def test_declare_false_never_declares(
    app: Celery, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Queue, "declare", lambda *args, **kwargs: pytest.fail("declared"))
    publisher = publisher_for(app, declare=False)
    assert [
        error for _, error in publisher.publish([task_message(queue.name, declare=(queue,))], 5)
    ] == [None]


def test_a_lost_connection_interrupts_the_rest(
    app: Celery, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = publisher_for(app)
    messages = [task_message(queue.name, declare=(queue,)) for _ in range(5)]
    receipts = publisher.publish(messages, 5)
    assert [next(receipts), next(receipts)] == [(0, None), (1, None)]
    gone = ConnectionResetError("gone")

    def fail(*args: Any, **kwargs: Any) -> None:
        raise gone

    monkeypatch.setattr("kombu.transport.memory.Channel._put", fail)
    with pytest.raises(Interrupted) as caught:
        next(receipts)
    assert caught.value.__cause__ is gone


def test_events_never_fail_their_message(app: Celery, queue: Queue) -> None:
    messages = [task_message(queue.name, declare=(queue,)) for _ in range(3)]
    for message in messages:
        message.event = task_message(queue.name)
    messages[1].event = task_message(queue.name, properties={"expiration": "soon"})
    errors = [error for _, error in publisher_for(app).publish(messages, 5)]
    assert errors == [None, None, None]
    assert len(arrived(app, queue)) == 5
