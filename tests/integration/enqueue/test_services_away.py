"""With the broker and the result backend down a call works, at once, and tries to reach neither."""

from __future__ import annotations

import socket
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, group

from tests.proj.relaying import messages, rows

if TYPE_CHECKING:
    from collections.abc import Callable

BROKERS = ("amqp://guest:guest@127.0.0.1:1//", "redis://127.0.0.1:1/0")
BACKENDS = ("redis://127.0.0.1:1/0", "rpc://", "cache+memory://", "disabled://")
SOON = datetime.now(timezone.utc) + timedelta(hours=1)

CALLS: dict[str, Callable[[Any], Any]] = {
    "delay": lambda add: add.delay(1),
    "countdown": lambda add: add.apply_async((1,), countdown=10),
    "eta": lambda add: add.apply_async((1,), eta=SOON),
    "expires": lambda add: add.apply_async((1,), expires=60),
    "retry policy": lambda add: add.apply_async((1,), retry=True, retry_policy={"max_retries": 9}),
    "chain": lambda add: chain(add.s(1), add.s(2))(),
    "chain to group": lambda add: chain(add.s(1), group(add.s(2), add.s(3)))(),
    "group": lambda add: group(add.s(1), add.s(2)).apply_async(),
    "by name": lambda add: add.app.send_task("some.where", (1,)),
}


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every attempt to reach something over the network, or just to look up its name."""
    made: list[Any] = []

    def refuse(*args: Any, **_: Any) -> Any:
        made.append(args)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return made


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("broker", BROKERS)
def test_calls_work_without_broker_and_backend_and_connect_nowhere(
    broker: str, backend: str, attempts: list[Any], make_app: Callable[..., Any],
    use_database: Callable[..., None],
) -> None:  # fmt: skip
    use_database("sqlite")
    add = make_app(broker=broker, backend=backend).tasks["enqueue.add"]
    add.delay(0)
    started = time.perf_counter()
    for call in CALLS.values():
        call(add)
    assert time.perf_counter() - started < 1
    assert attempts == []
    assert len(rows()) == len(CALLS) + 2


def test_the_reply_queue_of_the_rpc_backend_is_declared_with_the_message(
    make_app: Callable[..., Any], use_database: Callable[..., None]
) -> None:
    use_database("sqlite")
    app = make_app(backend="rpc://")
    app.tasks["enqueue.add"].delay(1)
    (message,) = messages(datetime.now(timezone.utc))
    reply, task = message.declare
    assert reply.name == message.properties["reply_to"] == app.thread_oid
    assert (reply.auto_delete, reply.expires, task.name) == (True, 86400.0, "celery")


def test_inside_of_a_pool_worker_the_reply_queue_is_left_alone_as_celery_does(
    make_app: Callable[..., Any], use_database: Callable[..., None]
) -> None:
    from celery._state import _set_task_join_will_block

    use_database("sqlite")
    add = make_app(backend="rpc://").tasks["enqueue.add"]
    _set_task_join_will_block(True)
    try:
        add.delay(1)
    finally:
        _set_task_join_will_block(False)
    (message,) = messages(datetime.now(timezone.utc))
    assert [queue.name for queue in message.declare] == ["celery"]
