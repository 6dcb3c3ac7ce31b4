"""What the Redis publisher promises, on a real Redis."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import kombu
import pytest
import redis
from celery import Celery
from kombu import Connection, Exchange, Producer, Queue, pools

from celery_outbox_steps.classify import is_permanent
from celery_outbox_steps.errors import Interrupted, Outage
from celery_outbox_steps.publishers import publisher_for
from celery_outbox_steps.publishers.redis import RedisPublisher
from tests import helpers
from tests.harness.proxy import Proxy
from tests.integration.publishers.conftest import REDIS_DB, publish, task_message
from tests.services import private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from celery_outbox_steps.messages import Message
    from tests.services import Service

pytestmark = pytest.mark.redis

needs_batches = pytest.mark.skipif(
    kombu.VERSION[:2] < (5, 7), reason="kombu sends batches to Redis since 5.7; before, one by one"
)


class RedisBroker:
    def __init__(self, url: str, **conf: Any) -> None:
        self.app = Celery("publishers", broker=url, set_as_current=False, **conf)
        self.publisher = publisher_for(self.app)

    def publish(self, messages: list[Message], timeout: float = 10) -> list[Exception | None]:
        return publish(self.publisher, messages, timeout)


@pytest.fixture
def broker(redis_url: str, redis_client: redis.Redis) -> Iterator[RedisBroker]:
    yield RedisBroker(redis_url)
    pools.reset()


def entries(client: redis.Redis, key: str = "q") -> list[dict[str, Any]]:
    """In the order of publishing."""
    return [json.loads(each) for each in reversed(client.lrange(key, 0, -1))]


def ids(messages: list[Message]) -> list[str]:
    return [message.headers["id"] for message in messages]


def test_a_batch_arrives_once_and_in_order(broker: RedisBroker, redis_client: redis.Redis) -> None:
    messages = [task_message("q") for _ in range(500)]
    assert broker.publish(messages) == [None] * 500
    assert [each["headers"]["id"] for each in entries(redis_client)] == ids(messages)
    assert isinstance(broker.publisher, RedisPublisher)


@needs_batches
def test_a_batch_is_one_round_trip(broker: RedisBroker, redis_client: redis.Redis) -> None:
    broker.publish([task_message("q")])
    before = redis_client.info("commandstats")["cmdstat_lpush"]["calls"]
    assert broker.publish([task_message("q") for _ in range(500)]) == [None] * 500
    assert redis_client.info("commandstats")["cmdstat_lpush"]["calls"] == before + 1


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"priority": 6},
        {"priority": None},
        {"body": b"\x00\xff raw", "content_type": "application/data", "content_encoding": "binary"},
        {"headers": {"id": "x", "text": "ä\ud800\x00", "number": 2**80, "deep": {"a": [1.5]}}},
        {"exchange": "named", "routing_key": "key"},
        {"exchange": "everybody"},
    ],
    ids=["plain", "priority", "no-priority", "binary", "headers", "exchange", "fanout"],
)
@pytest.mark.parametrize("options", [{}, {"global_keyprefix": "prefix:"}], ids=["", "prefix"])
def test_the_stored_message_is_what_kombu_would_store(
    redis_url: str, redis_client: redis.Redis, changes: dict[str, Any], options: dict[str, str]
) -> None:
    broker = RedisBroker(redis_url, broker_transport_options=options)
    queue = Queue("q", Exchange("named", "direct"), routing_key="key")
    fanout = Queue("f", Exchange("everybody", "fanout"))
    message = task_message(**{"routing_key": "q", **changes}, declare=(queue, fanout))
    message.properties["expiration"] = "1001"
    with Connection(redis_url, transport_options=options) as connection:
        producer = Producer(connection.default_channel)
        producer._publish(
            message.body, message.priority, message.content_type, message.content_encoding,
            message.headers, dict(message.properties), message.routing_key, False, False,
            message.exchange, list(message.declare),
        )  # fmt: skip
    theirs = dump(redis_client)
    redis_client.flushdb()
    assert broker.publish([message]) == [None]
    ours = dump(redis_client)
    assert ours == theirs
    if message.exchange != "everybody":
        assert "1001" in str(ours)
    pools.reset()


def dump(client: redis.Redis) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key in client.scan_iter():
        if client.type(key) == b"set":
            content[key.decode()] = client.smembers(key)
        elif client.type(key) == b"list":
            stored = entries(client, key.decode())
            for each in stored:
                assert each["properties"].pop("delivery_tag")
            content[key.decode()] = stored
    return content


@pytest.mark.parametrize("expiration", ["1", "999", "1001", "86399999", "4294967295"])
@pytest.mark.parametrize("exchange", ["", "named"])
def test_milliseconds_survive(
    broker: RedisBroker, redis_client: redis.Redis, expiration: str, exchange: str
) -> None:
    queue = Queue("q", Exchange("named", "direct"), routing_key="q")
    message = task_message("q", exchange=exchange, declare=(queue,))
    message.properties["expiration"] = expiration
    assert broker.publish([message]) == [None]
    assert [each["properties"]["expiration"] for each in entries(redis_client)] == [expiration]


@pytest.mark.parametrize("exchange", ["", "named"])
def test_a_message_that_can_not_be_encoded_fails_one_of_500(
    broker: RedisBroker, redis_client: redis.Redis, exchange: str
) -> None:
    queue = Queue("q", Exchange("named", "direct"), routing_key="q")
    messages = [task_message("q", exchange=exchange, declare=(queue,)) for _ in range(500)]
    messages[250].headers["value"] = object()
    errors = broker.publish(messages)
    assert [n for n, error in enumerate(errors) if error] == [250]
    assert is_permanent(errors[250])  # type: ignore[arg-type]
    arrived = [each["headers"]["id"] for each in entries(redis_client)]
    assert arrived == ids(messages[:250] + messages[251:])


def test_a_queue_that_is_no_list_fails_alone(
    broker: RedisBroker, redis_client: redis.Redis
) -> None:
    redis_client.set("broken", "a string")
    messages = [task_message("q") for _ in range(500)]
    messages[250].routing_key = "broken"
    errors = broker.publish(messages)
    assert [n for n, error in enumerate(errors) if error] == [250]
    assert "WRONGTYPE" in str(errors[250])
    assert not is_permanent(errors[250])  # type: ignore[arg-type]
    assert len(entries(redis_client)) == 499


@needs_batches
def test_a_failed_pipeline_of_kombu_is_uncertain_for_all_of_it(
    broker: RedisBroker, redis_client: redis.Redis
) -> None:
    good = Queue("q", Exchange("named", "direct"), routing_key="good")
    bad = Queue("broken", Exchange("named", "direct"), routing_key="bad")
    messages = [
        task_message(key, exchange="named", declare=(good, bad)) for key in ("good", "bad", "good")
    ]
    assert broker.publish(messages) == [None] * 3
    redis_client.delete("broken")
    redis_client.set("broken", "a string")
    errors = broker.publish([task_message("q"), *messages])
    assert errors[0] is None
    assert {type(error) for error in errors[1:]} == {Interrupted}
    assert {type(error.__cause__).__name__ for error in errors[1:] if error} == {
        "BatchPublishError"
    }
    assert broker.publisher.reachable(1)


def test_large_batches_are_flushed_in_parts(broker: RedisBroker, redis_client: redis.Redis) -> None:
    messages = [task_message("q", body=b"x" * 1_000_000) for _ in range(12)]
    assert broker.publish(messages) == [None] * 12
    assert redis_client.llen("q") == 12


@pytest.mark.skipif(kombu.VERSION[:2] < (5, 7), reason="older kombu ignores x-expires on Redis")
def test_queues_that_expire(broker: RedisBroker, redis_client: redis.Redis) -> None:
    queue = Queue("q", queue_arguments={"x-expires": 60_000})
    messages = [task_message("q", declare=(queue,)) for _ in range(20)]
    assert broker.publish(messages) == [None] * 20
    assert redis_client.llen("q") == 20
    assert 0 < redis_client.pttl("q") <= 60_000


def test_declare_false_never_declares(redis_url: str, redis_client: redis.Redis) -> None:
    broker = RedisBroker(redis_url)
    broker.publisher = publisher_for(broker.app, declare=False)
    message = task_message("q", declare=(Queue("q", Exchange("x"), routing_key="q"),))
    assert broker.publish([message]) == [None]
    assert redis_client.keys() == [b"q"]
    pools.reset()


def test_one_by_one_where_redis_retries_by_itself(
    redis_url: str, redis_client: redis.Redis
) -> None:
    broker = RedisBroker(redis_url, broker_transport_options={"retry_on_timeout": True})
    messages = [task_message("q") for _ in range(20)]
    messages[3].headers["value"] = object()
    errors = broker.publish(messages)
    assert [n for n, error in enumerate(errors) if error] == [3]
    assert redis_client.llen("q") == 19
    pools.reset()


def test_events_follow_and_never_fail_their_message(
    broker: RedisBroker, redis_client: redis.Redis
) -> None:
    messages = [task_message("q", event=task_message("events")) for _ in range(10)]
    messages[2].event = task_message("events", headers={"x": object()})
    messages[3].headers["value"] = object()
    errors = broker.publish(messages)
    assert [n for n, error in enumerate(errors) if error] == [3]
    assert redis_client.llen("q") == 9
    assert redis_client.llen("events") == 8


def test_redis_is_not_there(stopwatch: Callable[[], float]) -> None:
    broker = RedisBroker(f"redis://127.0.0.1:1/{REDIS_DB}")
    errors = broker.publish([task_message("q") for _ in range(10)], timeout=2)
    assert {type(error) for error in errors} == {Outage}
    assert not broker.publisher.reachable(1)
    assert stopwatch() < 5


@pytest.fixture
def proxy(redis_service: Service) -> Iterator[Proxy]:
    with Proxy(redis_service.host, redis_service.port) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: Proxy, redis_client: redis.Redis) -> RedisBroker:
    return RedisBroker(f"redis://127.0.0.1:{proxy.port}/{REDIS_DB}")


def test_a_stalled_network_is_an_outage_within_the_timeout(
    proxy: Proxy, proxied: RedisBroker, stopwatch: Callable[[], float]
) -> None:
    assert proxied.publish([task_message("q")], timeout=1) == [None]
    proxy.stall()
    start = stopwatch()
    errors = proxied.publish([task_message("q") for _ in range(100)], timeout=1)
    assert {type(error) for error in errors} == {Interrupted}
    assert stopwatch() - start < 4
    start = stopwatch()
    errors = proxied.publish([task_message("q")], timeout=1)  # a new connection, stalled as well
    assert isinstance(errors[0], Outage)
    assert not proxied.publisher.reachable(1)
    assert stopwatch() - start < 6
    proxy.resume()
    assert proxied.publish([task_message("q")]) == [None]


@needs_batches
def test_a_connection_cut_in_mid_batch(
    proxy: Proxy, proxied: RedisBroker, redis_client: redis.Redis
) -> None:
    assert proxied.publish([task_message("q")]) == [None]
    proxy.cut_after(100_000)
    messages = [task_message("q") for _ in range(500)]
    errors = proxied.publish(messages)
    assert {type(error) for error in errors} == {Interrupted}
    assert redis_client.llen("q") == 1, "an LPUSH that was cut off pushes nothing"
    assert proxied.publish(messages) == [None] * 500
    assert redis_client.llen("q") == 501


def test_a_server_that_became_a_replica_is_left(tmp_path: Path) -> None:
    """The name may lead to the new master by now; only a new connection finds out."""
    if not private.possible("redis"):
        helpers.require_program("redis-server")
    service = private.start("redis", home=tmp_path)
    try:
        broker = RedisBroker(service.url)
        assert broker.publish([task_message("q")]) == [None]
        with redis.Redis.from_url(service.url) as client:
            client.replicaof("127.0.0.1", "1")
            (error,) = broker.publish([task_message("q")])
            assert type(error) is Outage
            assert [each["cmd"] for each in client.client_list()] == ["client|list"]
            client.replicaof("NO", "ONE")
        assert broker.publish([task_message("q")]) == [None]
    finally:
        pools.reset()
        private.stop(service)
