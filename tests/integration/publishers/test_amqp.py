"""What the RabbitMQ publisher promises, on a real RabbitMQ."""

from __future__ import annotations

import gc
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed
from kombu import Connection, Exchange, Producer, Queue

from celery_outbox_steps.classify import is_permanent
from celery_outbox_steps.errors import Interrupted, Nacked, Outage, Unroutable
from celery_outbox_steps.publishers import publisher_for
from celery_outbox_steps.publishers.amqp import pipeline
from celery_outbox_steps.publishers.amqp.publisher import AmqpPublisher
from celery_outbox_steps.upstream.amqp import write_frames
from tests.helpers import wait_for
from tests.integration.publishers.conftest import Broker, task_message

if TYPE_CHECKING:
    from celery_outbox_steps.messages import Message
    from tests.integration.publishers.conftest import PrivateRabbit

pytestmark = pytest.mark.rabbitmq


def ids(messages: list[Message]) -> list[str]:
    return [message.headers["id"] for message in messages]


def fails_alone(broker: Broker, queue: Queue, messages: list[Message], culprit: int) -> Any:
    """Publish; all but the culprit arrive, once, and its error is returned."""
    errors = broker.publish(messages)
    expected = [each for number, each in enumerate(messages) if number != culprit]
    assert [number for number, error in enumerate(errors) if error] == [culprit]
    assert sorted(broker.ids(queue, len(expected))) == sorted(ids(expected))
    return errors[culprit]


def test_a_batch_arrives_once_and_in_order(broker: Broker) -> None:
    queue = broker.queue()
    messages = [task_message(queue.name) for _ in range(500)]
    assert broker.publish(messages) == [None] * 500
    assert broker.ids(queue, 500) == ids(messages)


def test_nothing_to_do(broker: Broker) -> None:
    assert broker.publish([]) == []


def test_a_missing_exchange_fails_one_of_500(broker: Broker) -> None:
    queue = broker.queue()
    messages = [task_message(queue.name) for _ in range(500)]
    messages[250].exchange = broker.name("nowhere")
    error = fails_alone(broker, queue, messages, 250)
    assert isinstance(error, NotFound)
    assert "nowhere" in str(error)


def test_an_exchange_that_is_deleted_between_two_batches(broker: Broker) -> None:
    queue = broker.queue()
    exchange = Exchange(broker.exchange(broker.name("gone")), "direct")
    with Connection(broker.url) as connection:
        exchange(connection.default_channel).declare()
        queue(connection.default_channel).bind_to(exchange.name, "key")
    messages = [task_message(queue.name) for _ in range(500)]
    for message in messages[250:253]:
        message.exchange, message.routing_key = exchange.name, "key"
    assert broker.publish(messages) == [None] * 500
    assert len(broker.arrived(queue, 500)) == 500
    with Connection(broker.url) as connection:
        exchange(connection.default_channel).delete()
    errors = broker.publish(messages)
    assert [n for n, error in enumerate(errors) if error] == [250, 251, 252]
    assert sorted(broker.ids(queue, 497)) == sorted(ids(messages[:250] + messages[253:]))


def test_an_unroutable_message_fails_one_of_500(broker: Broker) -> None:
    queue = broker.queue()
    messages = [task_message(queue.name) for _ in range(500)]
    messages[250].routing_key = broker.name("no-such-queue")
    error = fails_alone(broker, queue, messages, 250)
    assert isinstance(error, Unroutable)
    assert "no-such-queue" in str(error)


def test_a_message_larger_than_the_broker_accepts_fails_one_of_500(
    private_broker: Broker, private_rabbit: PrivateRabbit
) -> None:
    private_rabbit.limit_messages(1024)
    queue = private_broker.queue()
    messages = [task_message(queue.name, body=b"x" * (500 + n)) for n in range(500)]
    messages[250].body = b"x" * 1025
    error = fails_alone(private_broker, queue, messages, 250)
    assert isinstance(error, PreconditionFailed)
    assert "size" in str(error)


def test_a_limit_that_is_lowered_between_two_batches(
    private_broker: Broker, private_rabbit: PrivateRabbit
) -> None:
    queue = private_broker.queue()
    messages = [task_message(queue.name, body=b"x" * 2000) for _ in range(10)]
    assert private_broker.publish(messages) == [None] * 10
    private_broker.arrived(queue, 10)
    private_rabbit.limit_messages(1024)
    from kombu import pools

    pools.reset()  # the limit holds for new channels; a broker with a new limit was restarted
    private_broker.app.amqp._producer_pool = None
    private_broker.app._pool = None
    messages = [task_message(queue.name) for _ in range(499)]
    messages.insert(7, task_message(queue.name, body=b"x" * 2000))
    error = fails_alone(private_broker, queue, messages, 7)
    assert isinstance(error, PreconditionFailed)


def test_many_that_are_too_large(private_broker: Broker, private_rabbit: PrivateRabbit) -> None:
    private_rabbit.limit_messages(1024)
    queue = private_broker.queue()
    messages = [
        task_message(queue.name, body=b"x" * (2000 if n % 10 == 0 else 200)) for n in range(100)
    ]
    errors = private_broker.publish(messages)
    assert [n for n, error in enumerate(errors) if error] == list(range(0, 100, 10))
    assert all(isinstance(error, PreconditionFailed) for error in errors if error)
    good = [each for n, each in enumerate(messages) if n % 10]
    assert sorted(private_broker.ids(queue, 90)) == sorted(ids(good))


@pytest.mark.parametrize(
    "change",
    [
        {"user_id": "somebody-else"},
        {"expiration": "soon"},
        {"expiration": "9" * 20},  # more than RabbitMQ can count
    ],
)
def test_a_property_that_the_broker_refuses_fails_one_of_500(
    broker: Broker, change: dict[str, str]
) -> None:
    queue = broker.queue()
    messages = [task_message(queue.name) for _ in range(500)]
    messages[250].properties.update(change)
    assert isinstance(fails_alone(broker, queue, messages, 250), PreconditionFailed)


def test_a_bad_cc_header_fails_one_of_500(broker: Broker) -> None:
    queue = broker.queue()
    messages = [task_message(queue.name) for _ in range(500)]
    messages[250].headers["CC"] = 5
    assert isinstance(fails_alone(broker, queue, messages, 250), PreconditionFailed)


def test_a_forbidden_exchange_fails_those_that_use_it(
    private_broker: Broker, private_rabbit: PrivateRabbit
) -> None:
    queue = private_broker.queue()
    private_rabbit.ctl("add_user", "narrow", "narrow")
    private_rabbit.ctl("set_permissions", "narrow", ".*", r"^amq\.default$", ".*")
    try:
        narrow = Broker(private_rabbit.url.replace("guest:guest", "narrow:narrow"))
        messages = [task_message(queue.name) for _ in range(500)]
        for message in messages[250:253]:
            message.exchange = "amq.direct"
        errors = narrow.publish(messages)
    finally:
        private_rabbit.ctl("delete_user", "narrow")
    assert [n for n, error in enumerate(errors) if error] == [250, 251, 252]
    assert {type(error) for error in errors[250:253]} == {AccessRefused}
    assert not is_permanent(errors[250]), "a permission may be given back"  # type: ignore[arg-type]
    expected = ids(messages[:250] + messages[253:])
    assert sorted(private_broker.ids(queue, 497)) == sorted(expected)


def test_a_user_without_the_right_password_is_an_outage(broker: Broker) -> None:
    wrong = Broker(broker.url.replace("guest:guest", "guest:wrong"))
    errors = wrong.publish([task_message("x")] * 3)
    assert {type(error) for error in errors} == {Outage}


def test_a_wrong_setting_is_no_message_s_fault(rabbitmq_url: str) -> None:
    broken = Broker(rabbitmq_url, broker_transport_options={"frame_max": "many"})
    errors = broken.publish([task_message("x")] * 3)
    assert {type(error) for error in errors} == {Outage}


@pytest.mark.parametrize(
    "poison",
    [
        {"headers": {"id": "x", "value": object()}},
        {"headers": {"id": "x", "k" * 300: 1}},
        {"headers": {"id": "x", "huge": "h" * 200_000}},
        {"routing_key": "r" * 300},
        {"priority": 999},
    ],
    ids=["type", "long-name", "huge-headers", "long-key", "priority"],
)
def test_a_message_that_can_not_be_encoded_fails_one_of_500(
    broker: Broker, poison: dict[str, Any]
) -> None:
    queue = broker.queue()
    messages = [task_message(queue.name) for _ in range(500)]
    messages[250] = task_message(**{"routing_key": queue.name, **poison})
    assert fails_alone(broker, queue, messages, 250) is not None


def test_nacked_messages_fail(broker: Broker) -> None:
    queue = broker.queue(
        "full", queue_arguments={"x-max-length": 3, "x-overflow": "reject-publish"}
    )
    errors = broker.publish([task_message(queue.name) for _ in range(10)])
    assert errors[:3] == [None] * 3
    assert all(isinstance(error, Nacked) for error in errors[3:])
    assert len(broker.arrived(queue, 3)) == 3


def test_returned_messages_are_told_apart_without_a_task_id(broker: Broker) -> None:
    queue = broker.queue()
    messages = [task_message(queue.name, body=b"%d" % n) for n in range(100)]
    for n, message in enumerate(messages):
        message.properties = {"delivery_mode": 2}
        message.headers = {}
        if n % 3 == 0:
            message.routing_key = broker.name("no-such-queue")
    errors = broker.publish(messages)
    assert [n for n, error in enumerate(errors) if isinstance(error, Unroutable)] == list(
        range(0, 100, 3)
    )
    assert len(broker.arrived(queue, 66)) == 66


def test_large_returned_messages_do_not_block(broker: Broker) -> None:
    lost = broker.name("no-such-queue")
    errors = broker.publish([task_message(lost, body=b"x" * 300_000) for _ in range(60)])
    assert all(isinstance(error, Unroutable) for error in errors)


def test_an_exchange_without_a_queue_is_legal(broker: Broker) -> None:
    name = broker.exchange(broker.name("broadcast"))
    message = task_message("", exchange=name, declare=(Exchange(name, "fanout"),))
    assert broker.publish([message]) == [None]


def test_a_message_that_names_its_queue_must_be_routed(broker: Broker) -> None:
    exchange = Exchange(broker.exchange(broker.name("topic")), "topic")
    queue = Queue(broker.name("bound"), exchange, routing_key="right")
    message = task_message("wrong", exchange=exchange.name, declare=(queue,))
    (error,) = broker.publish([message])
    assert isinstance(error, Unroutable)
    message.routing_key = "right"
    assert broker.publish([message]) == [None]


def test_mandatory_is_respected(broker: Broker) -> None:
    exchange = Exchange(broker.exchange(broker.name("topic")), "topic")
    message = task_message("x", exchange=exchange.name, declare=(exchange,), mandatory=True)
    (error,) = broker.publish([message])
    assert isinstance(error, Unroutable)


def test_queues_are_declared_once_per_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared: list[str] = []
    declare = Queue.declare
    monkeypatch.setattr(
        Queue, "declare", lambda self, **kw: declared.append(self.name) or declare(self, **kw)
    )
    name = broker.name()
    batches = [[task_message(name, declare=(Queue(name),)) for _ in range(50)] for _ in range(3)]
    for batch in batches:
        assert broker.publish(batch) == [None] * 50
    assert declared == [name]


def test_a_queue_that_vanished_is_declared_again_on_the_next_attempt(broker: Broker) -> None:
    queue = Queue(broker.name())
    message = task_message(queue.name, declare=(queue,))
    assert broker.publish([message]) == [None]
    with Connection(broker.url) as connection:
        connection.default_channel.queue_delete(queue.name)
    assert isinstance(broker.publish([message])[0], Unroutable)
    assert broker.publish([message]) == [None]


def test_declare_false_never_declares(broker: Broker) -> None:
    queue = Queue(broker.name())
    broker.publisher = publisher_for(broker.app, declare=False)
    (error,) = broker.publish([task_message(queue.name, declare=(queue,))])
    assert isinstance(error, Unroutable)
    with Connection(broker.url) as connection, pytest.raises(NotFound):
        queue(connection.default_channel).queue_declare(passive=True)


def test_a_refused_declaration_fails_those_that_need_it(broker: Broker) -> None:
    good = broker.queue("good")
    taken = broker.queue("taken", durable=False, auto_delete=False)
    wrong = Queue(taken.name, durable=True)
    messages = [task_message(good.name, declare=(good,)) for _ in range(20)]
    messages[3:5] = [task_message(taken.name, declare=(wrong,)) for _ in range(2)]
    for _ in range(2):
        errors = broker.publish(messages)
        assert [n for n, error in enumerate(errors) if error] == [3, 4]
        assert isinstance(errors[3], PreconditionFailed)
        assert len(broker.arrived(good, 18)) == 18


def test_the_wire_message_is_what_kombu_would_send(broker: Broker) -> None:
    queue = broker.queue("exact", queue_arguments={"x-max-priority": 9})
    body = '[[], {}, {"ä": "\udce4"}]'.encode("utf-8", "surrogatepass")
    message = task_message(queue.name, body=body)
    message.priority = 7
    message.headers.update(custom={"deep": [1, 2**40, -1, 1.5, True, None, "ü", b"raw", {}]})
    message.properties.update(
        expiration="100001", message_id="m-1", type="t", app_id="a", timestamp=1700000000
    )
    assert broker.publish([message]) == [None]
    with Connection(broker.url) as connection:
        producer = Producer(connection.default_channel)
        producer._publish(
            message.body, message.priority, message.content_type, message.content_encoding,
            message.headers, dict(message.properties), message.routing_key, False, False, "", [],
        )  # fmt: skip
    ours, theirs = broker.arrived(queue, 2)
    for each in (ours, theirs):
        each.delivery_info.pop("message_count")
    assert ours.body == theirs.body == message.body
    assert ours.headers == theirs.headers
    assert ours.properties == theirs.properties
    assert ours.delivery_info["routing_key"] == theirs.delivery_info["routing_key"]
    assert ours.properties["priority"] == 7
    assert ours.properties["expiration"] == "100001"
    assert ours.properties["delivery_mode"] == 2


def test_events_follow_their_messages_and_never_fail_them(broker: Broker) -> None:
    queue = broker.queue()
    heard = broker.queue("heard")
    messages = [task_message(queue.name) for _ in range(20)]
    for message in messages:
        message.event = task_message(heard.name)
    messages[3].event = task_message("x", exchange=broker.name("nowhere"))
    messages[4].event = task_message(heard.name, headers={"x": object()})
    messages[5].routing_key = broker.name("no-such-queue")
    errors = broker.publish(messages)
    assert [n for n, error in enumerate(errors) if error] == [5]
    assert len(broker.arrived(queue, 19)) == 19
    assert len(broker.arrived(heard, 17)) == 17


def test_more_exchanges_than_channels(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_outbox_steps.publishers.amqp.pipeline.MAX_CHANNELS", 4)
    queue = broker.queue()
    names = [broker.exchange(broker.name(f"x{n}")) for n in range(12)]
    with Connection(broker.url) as connection:
        for name in names:
            Exchange(name, "fanout")(connection.default_channel).declare()
            queue(connection.default_channel).bind_to(name)
    messages = [task_message("", exchange=name) for name in names * 3]
    gc.disable()  # a closed channel is a reference cycle, so it may live on for long
    try:
        assert broker.publish(messages) == [None] * 36
        with broker.app.producer_pool.acquire() as producer:
            assert len(producer.connection.connection.channels) < 8
    finally:
        gc.enable()
    assert sorted(broker.ids(queue, 36)) == sorted(ids(messages))


def test_confirm_publish_of_the_app_does_not_slow_or_confuse(rabbitmq_url: str) -> None:
    broker = Broker(rabbitmq_url, broker_transport_options={"confirm_publish": True})
    try:
        queue = broker.queue()
        messages = [task_message(queue.name, declare=(queue,)) for _ in range(100)]
        assert broker.publish(messages) == [None] * 100
        assert len(broker.arrived(queue, 100)) == 100
    finally:
        broker.close()


def test_without_a_pool(rabbitmq_url: str) -> None:
    broker = Broker(rabbitmq_url, broker_pool_limit=None)
    try:
        queue = broker.queue()
        for _ in range(3):
            assert broker.publish([task_message(queue.name)]) == [None]
        assert len(broker.arrived(queue, 3)) == 3
    finally:
        broker.close()


def test_a_transport_that_we_do_not_know_is_written_to_by_pyamqp(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "celery_outbox_steps.publishers.amqp.pipeline.can_write_frames", lambda wire: False
    )
    queue = broker.queue()
    messages = [task_message(queue.name) for _ in range(500)]
    messages[250].headers["value"] = object()
    assert fails_alone(broker, queue, messages, 250) is not None
    messages[250] = task_message(queue.name, exchange=broker.name("nowhere"))
    assert isinstance(fails_alone(broker, queue, messages, 250), NotFound)


def test_it_is_chosen_for_amqp(broker: Broker) -> None:
    assert isinstance(broker.publisher, AmqpPublisher)


def test_nothing_more_is_written_when_the_time_is_up(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a freeze in the middle of a batch: the rest may belong to another relay by now."""
    queue = broker.queue()
    chunks: list[int] = []

    def write_and_freeze(wire: Any, data: bytes, timeout: float) -> None:
        chunks.append(len(data))
        write_frames(wire, data, timeout)
        begin = monotonic()
        wait_for(lambda: monotonic() - begin > 0.5)

    monkeypatch.setattr(pipeline, "write_frames", write_and_freeze)
    messages = [task_message(queue.name) for _ in range(500)]
    with pytest.raises(Interrupted):
        list(broker.publisher.publish(messages, 0.4))
    assert len(chunks) == 1
