"""The brokers as an observer sees them: how many messages are in the queue, and when.

A rate is computed from the broker's own counts, not from what a contender reports. The observer
reads no message. `sections/` uses it for every contender.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kombu import Connection

from benchmarks.project.settings import IDLE, RABBITMQ_URL, REDIS_URL, TARGET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.processes import Process

POLL_INTERVAL = 0.02
TIMEOUT = 300.0


class Broker(Protocol):
    """One broker, seen from outside."""

    name: str

    def count(self) -> int: ...

    def purge(self) -> None: ...

    def delete(self) -> None: ...


class RabbitMQ:
    """A queue that is declared as Celery declares it."""

    name = "rabbitmq"

    def __init__(self) -> None:
        self._connection = Connection(RABBITMQ_URL)
        self._channel: Any = self._connection.channel()

    def count(self) -> int:
        answer = self._channel.queue_declare(TARGET, passive=True)
        return int(answer.message_count)

    def purge(self) -> None:
        for queue in (TARGET, IDLE):
            self._channel.queue_declare(queue, durable=True, auto_delete=False)
            self._channel.queue_purge(queue)

    def delete(self) -> None:
        for queue in (TARGET, IDLE):
            self._channel.queue_delete(queue)


class Redis:
    """A list in a database of our own."""

    name = "redis"

    def __init__(self) -> None:
        self._connection = Connection(REDIS_URL)
        self._client: Any = self._connection.default_channel.client

    def count(self) -> int:
        return int(self._client.llen(TARGET))

    def purge(self) -> None:
        self._client.flushdb()

    def delete(self) -> None:
        self.purge()


class Throughput(NamedTuple):
    """The rate between the first message and the last."""

    rate: float
    """Messages per second."""
    seconds: float


def watch(broker: Broker, messages: int, processes: Sequence[Process]) -> Throughput:
    """Poll until this number of messages has arrived."""
    first: tuple[float, int] | None = None
    deadline = time.perf_counter() + TIMEOUT
    while True:
        now, count = time.perf_counter(), broker.count()
        if count and first is None:
            first = now, count
        if first is not None and count >= messages:
            break
        _check_progress(now < deadline, count, messages, processes)
        time.sleep(POLL_INTERVAL)
    seconds = max(now - first[0], 1e-9)
    return Throughput((count - first[1]) / seconds, seconds)


def watch_drain(broker: Broker, messages: int, processes: Sequence[Process]) -> Throughput:
    """Poll until a full queue is empty."""
    began: float | None = None
    deadline = time.perf_counter() + TIMEOUT
    while True:
        now, count = time.perf_counter(), broker.count()
        if began is None and count < messages:
            began, messages = now, count
        if count == 0 and began is not None:
            break
        _check_progress(now < deadline, count, messages, processes)
        time.sleep(POLL_INTERVAL)
    seconds = max(now - began, 1e-9)
    return Throughput(messages / seconds, seconds)


def _check_progress(
    in_time: bool,  # noqa: FBT001
    count: int,
    messages: int,
    processes: Sequence[Process],
) -> None:
    for process in processes:
        if not process.alive or not in_time:
            raise process.failure(f"stopped at {count} of {messages} messages")
