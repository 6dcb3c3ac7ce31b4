"""What arrives at a destination: events with nothing of Celery in them, and tasks that are exactly
what an app of that installation would have sent.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from amqp.basic_message import Message as AmqpMessage
from celery import chain, group
from django.db import transaction

from tests.harness.databases import rabbitmq_url, redis_url
from tests.integration.fidelity.twins import NOW, Direct, Stored, context, frozen, twin
from tests.integration.fidelity.wire import RabbitTap, RedisTap, Topic
from tests.proj.relaying import deliveries, publish_deliveries, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import SimpleNamespace

pytestmark = pytest.mark.usefixtures("sqlite")

TAPS = {"rabbitmq": RabbitTap, "redis": RedisTap}
URLS = {"rabbitmq": rabbitmq_url, "redis": redis_url}
BROKERS = [
    pytest.param("rabbitmq", marks=pytest.mark.rabbitmq),
    pytest.param("redis", marks=pytest.mark.redis),
]
FRAME = 12
"""Bytes of a header frame in front of the properties."""
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def sqlite(use_database: Callable[..., None]) -> None:
    use_database("sqlite")


@pytest.fixture(scope="module")
def prefix() -> str:
    return f"destinations-{uuid4().hex[:8]}"


@pytest.fixture
def tap_of(prefix: str) -> Iterator[Callable[[str], Any]]:
    opened = []

    def get(broker: str) -> Any:
        opened.append(TAPS[broker](URLS[broker](), prefix))
        return opened[-1]

    yield get
    for tap in opened:
        tap.close()


def app_with(prefix: str, **destination: Any) -> Any:
    conf = {"outbox_destinations": {"partner": destination}, "outbox_event_source": "/shop"}
    return twin(Stored, prefix, "amqp://guest@127.0.0.1:1//", conf)


# -- events ---------------------------------------------------------------------------------------


def attributes(name: str, found: str, time: str, key: str) -> dict[str, str]:
    return {
        f"{name}specversion": "1.0",
        f"{name}id": found,
        f"{name}source": "/shop",
        f"{name}type": "order.paid",
        f"{name}time": time,
        f"{name}partitionkey": key,
    }


@pytest.mark.rabbitmq
@pytest.mark.parametrize(
    ("data", "content_type", "body", "encoding"),
    [
        ({"id": 7, "who": "Zoë"}, None, b'{"id": 7, "who": "Zo\\u00eb"}', "utf-8"),
        (b"\x00\xff", "image/png", b"\x00\xff", "binary"),
    ],
    ids=["json", "bytes"],
)
def test_an_event_in_rabbitmq_is_to_the_byte_what_cloudevents_say(
    data: Any,
    content_type: str | None,
    body: bytes,
    encoding: str,
    prefix: str,
    tap_of: Callable[[str], Any],
) -> None:
    exchange = f"{prefix}.domain"
    app = app_with(prefix, url=rabbitmq_url(), exchange=exchange, routing_key="{name}.{key}")
    with tap_of("rabbitmq").watch((Topic(exchange),), 1) as seen:
        found = app.outbox.publish(
            "order.paid", data, to="partner", key="order:7",
            headers={"tenant": "acme", "tries": 3}, content_type=content_type,
        )  # fmt: skip
        time = json.loads(deliveries()[0].options)["time"]
        publish_deliveries(app, NOW)
    (message,) = seen["messages"]
    wanted = {
        "content_type": content_type or "application/json",
        "content_encoding": encoding,
        "application_headers": {
            "tenant": "acme", "tries": 3,
            **attributes("cloudEvents_", found, time, "order:7"),
        },
        "delivery_mode": 2,
        "message_id": found,
    }  # fmt: skip
    assert message.properties == wanted
    assert message.property_bytes[FRAME:] == AmqpMessage(body, **wanted)._serialize_properties()
    assert message.body == body
    assert (message.exchange, message.routing_key) == (exchange, "order.paid.order:7")
    ((name, declared),) = seen["declared"]
    assert (name, declared["exchange"], declared["type"]) == ("exchange_declare", exchange, "topic")


@pytest.mark.rabbitmq
def test_an_event_for_a_queue_and_one_for_a_transient_exchange(
    prefix: str, tap_of: Callable[[str], Any]
) -> None:
    queue = f"{prefix}.in"
    app = app_with(prefix, url=rabbitmq_url(), queue=queue, persistent=False, serializer="yaml")
    with tap_of("rabbitmq").watch(expect=1) as seen:
        app.outbox.publish("order.paid", {"id": 7}, to="partner")
        publish_deliveries(app, NOW)
    (message,) = seen["messages"]
    assert (message.queue, message.exchange, message.body) == (queue, "", b"id: 7\n")
    assert message.properties["delivery_mode"] == 1
    assert message.properties["content_type"] == "application/x-yaml"


@pytest.mark.redis
def test_an_event_in_redis_has_the_same_attributes(
    prefix: str, tap_of: Callable[[str], Any]
) -> None:
    queue = f"{prefix}.in"
    app = app_with(prefix, url=redis_url(), queue=queue)
    with tap_of("redis").watch() as seen:
        found = app.outbox.publish("order.paid", {"id": 7}, to="partner", key="order:7")
        time = json.loads(deliveries()[0].options)["time"]
        publish_deliveries(app, NOW)
    (entry,) = seen["messages"][queue.encode()]
    message = json.loads(entry)
    assert base64.b64decode(message.pop("body")) == b'{"id": 7}'
    assert message == {
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": attributes("ce-", found, time, "order:7"),
        "properties": {
            "delivery_mode": 2,
            "message_id": found,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": "",
        },
    }


@pytest.mark.redis
def test_an_event_for_an_exchange_in_redis_reaches_the_queues_that_are_bound(
    prefix: str, tap_of: Callable[[str], Any]
) -> None:
    exchange = f"{prefix}.domain"
    app = app_with(prefix, url=redis_url(), exchange=exchange)
    with tap_of("redis").watch((Topic(exchange),)) as seen:
        app.outbox.publish("order.paid", {"id": 7}, to="partner")
        publish_deliveries(app, NOW)
    assert [len(each) for each in seen["messages"].values()] == [1]


@pytest.mark.rabbitmq
def test_the_callers_trace_is_a_header_and_an_attribute(
    prefix: str, tap_of: Callable[[str], Any]
) -> None:
    app = app_with(prefix, url=rabbitmq_url(), queue=f"{prefix}.in")
    with tap_of("rabbitmq").watch(expect=1) as seen:
        app.outbox.publish("order.paid", to="partner", headers={"traceparent": PARENT})
        publish_deliveries(app, NOW)
    (message,) = seen["messages"]
    headers = message.properties["application_headers"]
    assert headers["traceparent"] == headers["cloudEvents_traceparent"] == PARENT


# -- tasks ----------------------------------------------------------------------------------------


def plain(seen: SimpleNamespace, **to: Any) -> Any:
    return seen.add.apply_async((1,), {"y": 2}, priority=3, headers={"a": 1}, **to)


def unknown(seen: SimpleNamespace, **to: Any) -> Any:
    return seen.app.send_task("partner.charge", (1,), expires=60, **to)


def named_queue(seen: SimpleNamespace, **to: Any) -> Any:
    return seen.add.apply_async((1,), queue=seen.q + "named", **to)


def own_queue(seen: SimpleNamespace, **to: Any) -> Any:
    """The task has a queue, which is one of this app's broker."""
    return seen.configured.apply_async((1,), **(to or {"queue": seen.q + "partner"}))


def linked(seen: SimpleNamespace, **to: Any) -> Any:
    return seen.add.apply_async((1,), link=seen.echo.s(), link_error=seen.echo.si(), **to)


def chained(seen: SimpleNamespace, **to: Any) -> Any:
    """The head goes there; its worker sends the rest."""
    return chain(seen.add.s(1), seen.add.s(2), seen.echo.s()).apply_async(**to)


def grouped(seen: SimpleNamespace, **to: Any) -> Any:
    return group(seen.add.s(1), seen.add.s(2)).apply_async(**to)


def signed(seen: SimpleNamespace, **to: Any) -> Any:
    return seen.add.s(1).set(**to).apply_async()


CALLS = (plain, unknown, named_queue, own_queue, linked, chained, grouped, signed)


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call.__name__))
def test_a_task_for_another_installation_equals_what_an_app_of_it_would_send(
    call: Callable[..., Any], broker: str, prefix: str, tap_of: Callable[[str], Any]
) -> None:
    tap, url, queue = tap_of(broker), URLS[broker](), f"{prefix}.partner"
    count = 2 if call is grouped else 1
    with frozen(), tap.watch(expect=count) as direct:
        app = twin(Direct, prefix, url, {"task_default_queue": queue})
        result = call(context(app, prefix))
    with frozen(), tap.watch(expect=count) as relayed:
        app = app_with(prefix, url=url, queue=queue)
        with transaction.atomic():
            stored = call(context(app, prefix), outbox_destination="partner")
        assert rows() == []
        assert publish_deliveries(app, NOW) == count
    assert relayed == direct
    assert stored.as_tuple() == result.as_tuple()


@pytest.mark.rabbitmq
def test_the_result_queue_of_the_rpc_backend_is_not_declared_at_a_broker_where_nobody_reads_it(
    prefix: str, tap_of: Callable[[str], Any]
) -> None:
    tap, url, queue = tap_of("rabbitmq"), rabbitmq_url(), f"{prefix}.partner"
    with frozen(), tap.watch(expect=1) as seen:
        app = app_with(prefix, url=url, queue=queue)
        app.conf.result_backend = "rpc://"
        plain(context(app, prefix), outbox_destination="partner")
        publish_deliveries(app, NOW)
    (message,) = seen["messages"]
    assert message.properties["reply_to"] == app.thread_oid  # as in every message of Celery
    assert [each["queue"] for name, each in seen["declared"] if name == "queue_declare"] == [queue]
