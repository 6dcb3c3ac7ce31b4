"""What happens to a batch when the network or the broker lets it down."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from amqp.exceptions import Blocked, UnexpectedFrame

from celery_outbox_steps.errors import ConfirmTimeout, Interrupted, Outage
from tests import helpers
from tests.harness.proxy import Proxy
from tests.integration.publishers.conftest import Broker, task_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.publishers.conftest import PrivateRabbit

pytestmark = pytest.mark.rabbitmq


@pytest.fixture
def proxy(rabbitmq_url: str) -> Iterator[Proxy]:
    service = helpers.require_service("rabbitmq")
    with Proxy(service.host, service.port) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: Proxy, broker: Broker) -> Broker:
    """A broker behind the proxy; `broker` looks into its queues directly."""
    return Broker(f"amqp://guest:guest@127.0.0.1:{proxy.port}//")


def assert_outage(errors: list[Exception | None]) -> None:
    assert all(isinstance(error, Outage) for error in errors)


def test_a_stalled_network_is_an_outage_within_the_timeout(
    proxy: Proxy, proxied: Broker, broker: Broker, stopwatch: Callable[[], float]
) -> None:
    queue = broker.queue()
    assert proxied.publish([task_message(queue.name)]) == [None]
    proxy.stall()
    start = stopwatch()
    errors = proxied.publish([task_message(queue.name) for _ in range(100)], timeout=1)
    assert stopwatch() - start < 3
    assert_outage(errors)
    proxy.resume()
    assert proxied.publish([task_message(queue.name)]) == [None]
    assert proxy.connections == 2


def test_a_write_into_a_full_buffer_is_bounded(
    proxy: Proxy, proxied: Broker, broker: Broker, stopwatch: Callable[[], float]
) -> None:
    queue = broker.queue()
    assert proxied.publish([task_message(queue.name, body=b"x" * 1_000_000)]) == [None]
    proxy.stall()
    start = stopwatch()
    messages = [task_message(queue.name, body=b"x" * 1_000_000) for _ in range(30)]
    errors = proxied.publish(messages, timeout=1)
    assert stopwatch() - start < 4
    assert_outage(errors)
    proxy.resume()
    assert proxied.publish([task_message(queue.name)]) == [None]


def test_a_broker_that_does_not_answer_the_handshake(
    proxy: Proxy, proxied: Broker, stopwatch: Callable[[], float]
) -> None:
    proxy.stall()
    start = stopwatch()
    assert_outage(proxied.publish([task_message("x") for _ in range(10)], timeout=1))
    assert stopwatch() - start < 3


def test_a_broker_that_is_not_there(stopwatch: Callable[[], float]) -> None:
    broker = Broker("amqp://guest:guest@127.0.0.1:1//")
    start = stopwatch()
    assert_outage(broker.publish([task_message("x") for _ in range(10)], timeout=5))
    assert stopwatch() - start < 2


def test_failover_to_the_next_broker(rabbitmq_url: str, broker: Broker) -> None:
    queue = broker.queue()
    # Another dead port than above: kombu's pools are shared by all that name the same first host.
    two = Broker(f"amqp://guest:guest@127.0.0.1:2//;{rabbitmq_url}")
    assert two.publish([task_message(queue.name)], timeout=5) == [None]


def test_a_connection_cut_in_mid_batch(proxy: Proxy, proxied: Broker, broker: Broker) -> None:
    queue = broker.queue()
    messages = [task_message(queue.name, body=b"x" * 2000) for _ in range(500)]
    assert proxied.publish(messages[:1]) == [None]
    broker.arrived(queue, 1)
    proxy.cut_after(300_000)
    errors = proxied.publish(messages)
    failed = [n for n, error in enumerate(errors) if error]
    assert failed
    assert_outage([errors[n] for n in failed])
    delivered = set(broker.ids(queue, 1))
    confirmed = {m.headers["id"] for n, m in enumerate(messages) if n not in set(failed)}
    assert confirmed <= delivered
    assert len(delivered) < 500
    assert proxied.publish([messages[n] for n in failed]) == [None] * len(failed)


def test_a_connection_that_died_in_the_pool_costs_nothing(
    proxy: Proxy, proxied: Broker, broker: Broker
) -> None:
    queue = broker.queue()
    assert proxied.publish([task_message(queue.name)]) == [None]
    proxy.cut()
    assert proxied.publish([task_message(queue.name) for _ in range(10)]) == [None] * 10
    assert len(broker.arrived(queue, 11)) == 11


def test_confirms_that_come_too_late_are_not_taken_for_the_next_batch(
    proxy: Proxy, proxied: Broker, broker: Broker
) -> None:
    queue = broker.queue()
    assert proxied.publish([task_message(queue.name) for _ in range(5)]) == [None] * 5
    proxy.stall()
    errors = proxied.publish([task_message(queue.name) for _ in range(5)], timeout=0.3)
    assert {type(error.__cause__) for error in errors if error} == {ConfirmTimeout}
    proxy.resume()
    (error,) = proxied.publish([task_message(broker.name("no-such-queue"))])
    assert error is not None


def test_a_memory_alarm_is_an_outage_and_ends(
    private_broker: Broker, private_rabbit: PrivateRabbit, stopwatch: Callable[[], float]
) -> None:
    queue = private_broker.queue()
    assert private_broker.publish([task_message(queue.name)]) == [None]
    private_rabbit.ctl("set_vm_memory_high_watermark", "0.0000001")
    messages = [task_message(queue.name) for _ in range(300)]
    try:
        for _ in range(3):
            start = stopwatch()
            errors = private_broker.publish(messages, timeout=1)
            assert stopwatch() - start < 3
            assert_outage(errors)
            assert {type(error) for error in errors} == {Outage}
            assert {type(error.__cause__) for error in errors if error} == {Blocked}
    finally:
        private_rabbit.ctl("set_vm_memory_high_watermark", "0.4")
    assert private_broker.publish(messages, timeout=20) == [None] * 300
    arrived = private_broker.ids(queue, 301)
    assert {message.headers["id"] for message in messages} <= set(arrived)
    # What had been written before the broker said stop comes once more; later attempts wrote none.
    assert len(arrived) <= 301 + 300


def test_an_alarm_that_ends_in_time_is_no_failure(
    private_broker: Broker, private_rabbit: PrivateRabbit
) -> None:
    queue = private_broker.queue()
    private_rabbit.ctl("set_vm_memory_high_watermark", "0.0000001")
    end = threading.Timer(1, private_rabbit.ctl, ("set_vm_memory_high_watermark", "0.4"))
    end.start()
    assert private_broker.publish([task_message(queue.name)] * 300, timeout=30) == [None] * 300
    end.join()
    assert len(private_broker.arrived(queue, 300)) == 300


def test_the_broker_closes_the_connection(
    private_broker: Broker, private_rabbit: PrivateRabbit
) -> None:
    queue = private_broker.queue()
    assert private_broker.publish([task_message(queue.name)]) == [None]
    private_rabbit.ctl("close_all_connections", "for a test")
    assert private_broker.publish([task_message(queue.name)]) == [None]


def test_a_message_that_breaks_the_connection_is_found_alone(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_outbox_steps.publishers.amqp import pipeline

    frames = pipeline.publish_frames
    culprit = None

    def corrupted(message, *args, **kwargs):  # a content header of the wrong class
        data = frames(message, *args, **kwargs)
        wrong = data.replace(b"\x00\x3c\x00\x00", b"\x00\x3d\x00\x00")
        return wrong if message is culprit else data

    monkeypatch.setattr(pipeline, "publish_frames", corrupted)
    queue = broker.queue()
    messages = [task_message(queue.name) for _ in range(20)]
    assert broker.publish(messages[:1]) == [None]
    culprit = messages[10]
    interrupted = [n for n, error in enumerate(broker.publish(messages)) if error]
    assert 10 in interrupted
    alone = {n: broker.publish([messages[n]])[0] for n in interrupted}
    assert [n for n, error in alone.items() if error] == [10]
    assert isinstance(alone[10], Interrupted)
    assert isinstance(alone[10].__cause__, UnexpectedFrame)
    assert broker.publisher.reachable(1)
    delivered = set(broker.ids(queue, 20))
    assert {m.headers["id"] for m in messages if m is not culprit} == delivered


def test_every_connection_in_use(rabbitmq_url: str, stopwatch: Callable[[], float]) -> None:
    broker = Broker(rabbitmq_url, broker_pool_limit=1)
    with broker.app.producer_pool.acquire(block=True):
        start = stopwatch()
        assert_outage(broker.publish([task_message("x")], timeout=0.5))
        assert stopwatch() - start < 2
