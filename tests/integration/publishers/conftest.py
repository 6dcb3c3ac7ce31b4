"""Brokers for the publishers: the shared ones, and a private RabbitMQ that may be mistreated."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery
from kombu import Connection, Queue

from celery_outbox_steps.errors import Outage
from celery_outbox_steps.messages import Message
from celery_outbox_steps.publishers import publisher_for
from tests import helpers
from tests.services import private, programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_outbox_steps.publishers import Publisher
    from tests.services import Service

REDIS_DB = 9


def task_message(routing_key: str = "", body: bytes | None = None, **changes: Any) -> Message:
    """A message as Celery's protocol 2 builds it, about twenty headers."""
    task_id = str(uuid.uuid4())
    embed = b'{"callbacks": null, "errbacks": null, "chain": null, "chord": null}'
    default = b'[[1, "two"], {"three": 3}, ' + embed + b"]"
    message = Message(
        body=default if body is None else body,
        content_type="application/json",
        content_encoding="utf-8",
        headers={
            "lang": "py",
            "task": "proj.tasks.add",
            "id": task_id,
            "shadow": None,
            "eta": None,
            "expires": None,
            "group": None,
            "group_index": None,
            "retries": 0,
            "timelimit": [None, None],
            "root_id": task_id,
            "parent_id": None,
            "argsrepr": "(1, 'two')",
            "kwargsrepr": "{'three': 3}",
            "origin": "gen4711@web-1",
            "ignore_result": False,
            "replaced_task_nesting": 0,
            "stamped_headers": None,
            "stamps": {},
        },
        properties={
            "delivery_mode": 2,
            "correlation_id": task_id,
            "reply_to": str(uuid.uuid4()),
        },
        priority=0,
        exchange="",
        routing_key=routing_key,
    )
    for name, value in changes.items():
        setattr(message, name, value)
    return message


def publish(
    publisher: Publisher, messages: list[Message], timeout: float = 10
) -> list[Exception | None]:
    """Errors in the order of the messages; an outage is the error of all without a receipt."""
    errors: dict[int, Exception | None] = {}
    outage: Outage | None = None
    try:
        for position, error in publisher.publish(messages, timeout):
            errors[position] = error
    except Outage as exc:
        outage = exc
    assert outage or sorted(errors) == list(range(len(messages)))
    return [errors.get(position, outage) for position in range(len(messages))]


class Broker:
    """An app on one RabbitMQ, its publisher, and a way to look into queues."""

    def __init__(self, url: str, **conf: Any) -> None:
        self.url = url
        self.prefix = f"outbox-test-{uuid.uuid4().hex[:8]}"
        self.app = Celery("publishers", broker=url, set_as_current=False, **conf)
        self.publisher: Publisher = publisher_for(self.app)
        self._names: list[str] = []
        self._exchanges: list[str] = []

    def name(self, suffix: str = "queue") -> str:
        name = f"{self.prefix}.{suffix}"
        self._names.append(name)
        return name

    def queue(self, suffix: str = "queue", **options: Any) -> Queue:
        queue = Queue(self.name(suffix), **options)
        with Connection(self.url) as connection:
            queue(connection.default_channel).declare()
        return queue

    def exchange(self, name: str) -> str:
        self._exchanges.append(name)
        return name

    def publish(self, messages: list[Message], timeout: float = 10) -> list[Exception | None]:
        return publish(self.publisher, messages, timeout)

    def arrived(self, queue: Queue, count: int | None = None) -> list[Any]:
        """Everything in the queue, taken out; waits until at least `count` are there."""
        with Connection(self.url) as connection:
            bound = queue(connection.default_channel)
            if count is not None:
                helpers.wait_for(
                    lambda: bound.queue_declare(passive=True).message_count >= count,
                    message=lambda: f"only {bound.queue_declare(passive=True).message_count}",
                )
            return list(iter(lambda: bound.get(no_ack=True), None))

    def ids(self, queue: Queue, count: int) -> list[str]:
        return [message.headers["id"] for message in self.arrived(queue, count)]

    def close(self) -> None:
        self.publisher.close()
        self.app.close()
        from kombu import pools

        pools.reset()
        with Connection(self.url) as connection:
            channel = connection.default_channel
            for name in self._names:
                channel.queue_delete(name)
            for name in self._exchanges:
                channel.exchange_delete(name)


@pytest.fixture(scope="session")
def rabbitmq_url() -> str:
    return helpers.require_service("rabbitmq").url


@pytest.fixture
def broker(rabbitmq_url: str) -> Iterator[Broker]:
    broker = Broker(rabbitmq_url)
    yield broker
    broker.close()


@pytest.fixture(scope="session")
def redis_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A private one where it can be started: these tests empty it, even if others use it."""
    if not private.possible("redis"):
        yield helpers.require_service("redis")
        return
    service = private.start("redis", home=tmp_path_factory.mktemp("services"))
    yield service
    private.stop(service)


@pytest.fixture(scope="session")
def redis_url(redis_service: Service) -> str:
    return f"redis://{redis_service.host}:{redis_service.port}/{REDIS_DB}"


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(redis_url)
    client.flushdb()
    yield client
    client.flushdb()
    client.close()


class PrivateRabbit:
    """A RabbitMQ of our own, with its rabbitmqctl."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.url = f"amqp://guest:guest@127.0.0.1:{service.port}//"
        note = json.loads((Path(service.directory) / "service.json").read_text())
        self._data = note["data"]
        self._server = service.pids[-1]

    def ctl(self, *arguments: str) -> str:
        result = subprocess.run(
            [programs.require("rabbitmqctl"), *arguments],
            env={**os.environ, **self._environment()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def eval(self, code: str) -> str:
        return self.ctl("eval", code)

    def limit_messages(self, size: int) -> None:
        # RabbitMQ 3 reads the setting per channel, RabbitMQ 4 from a persistent term.
        self.eval(
            f"application:set_env(rabbit, max_message_size, {size}), "
            f"persistent_term:put(max_message_size, {size})."
        )

    def _environment(self) -> dict[str, str]:
        # The server's own environment has the node's name, its ports and its cookie's home.
        text = Path(f"/proc/{self._server}/environ").read_bytes().decode(errors="replace")
        pairs = dict(each.split("=", 1) for each in text.split("\0") if "=" in each)
        wanted = ("RABBITMQ_", "ERL_", "HOME")
        return {key: value for key, value in pairs.items() if key.startswith(wanted)}


@pytest.fixture(scope="session")
def private_rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateRabbit]:
    if not private.possible("rabbitmq"):
        helpers.require_program("rabbitmq-server")
    service = private.start("rabbitmq", home=tmp_path_factory.mktemp("services"))
    yield PrivateRabbit(service)
    private.stop(service)


@pytest.fixture
def private_broker(private_rabbit: PrivateRabbit) -> Iterator[Broker]:
    broker = Broker(private_rabbit.url)
    yield broker
    private_rabbit.limit_messages(134217728)
    broker.close()


@pytest.fixture
def stopwatch() -> Callable[[], float]:
    start = time.monotonic()
    return lambda: time.monotonic() - start
