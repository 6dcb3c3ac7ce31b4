"""What is really at the broker: raw bytes and declarations, before kombu decodes anything.

`RabbitTap` records every declaration that goes over the wire and fetches messages with basic.get,
keeping the property bytes as RabbitMQ sent them. `RedisTap` reads the keys.
"""

from __future__ import annotations

import inspect
import re
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import redis
from amqp import Channel, Connection
from amqp.basic_message import Message as AmqpMessage
from kombu import Connection as Address
from kombu import Exchange, Queue

if TYPE_CHECKING:
    from collections.abc import Iterator

DECLARATIONS = ("exchange_declare", "queue_declare", "queue_bind")
DELIVERY_TAG = re.compile(r'"delivery_tag": "[^"]*"')


class Topic(NamedTuple):
    """An exchange that exists beforehand, with a queue bound to it that catches everything."""

    name: str
    type: str = "topic"
    key: str = "#"


class Raw(NamedTuple):
    """One message as RabbitMQ hands it out."""

    queue: str
    exchange: str
    routing_key: str
    property_bytes: bytes
    properties: dict[str, Any]
    """The same bytes decoded, so that a difference can be read."""
    body: bytes


class RabbitTap:
    """Sees what one side declares and publishes, and removes it all afterwards."""

    def __init__(self, url: str, prefix: str) -> None:
        address = Address(url)
        self._prefix = prefix
        self.connection = Connection(
            host=f"{address.hostname}:{address.port}",
            userid=address.userid, password=address.password,
            virtual_host=address.virtual_host or "/",
        )  # fmt: skip
        self.connection.connect()

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def watch(self, taps: tuple[Topic, ...] = (), expect: int = 0) -> Iterator[dict[str, Any]]:
        """Fills the yielded dict with `declared` and `messages` when the block ends."""
        seen: dict[str, Any] = {}
        channel = self.connection.channel()
        found: list[Raw] = []
        for tap in taps:
            self._catch(channel, tap, found)
        declared: list[tuple[str, dict[str, Any]]] = []
        with _recording(declared), _keeping_property_bytes():
            yield seen
            queues = {arguments["queue"] for name, arguments in declared if name == "queue_declare"}
            self._collect(channel, queues, found, expect)
        seen["messages"] = sorted(found)
        seen["declared"] = declared
        self._remove(channel, taps, declared)
        channel.close()

    def _catch(self, channel: Any, tap: Topic, found: list[Raw]) -> None:
        """A consumer and not a queue to look into: it also sees messages with a TTL of 0."""
        channel.exchange_declare(tap.name, tap.type, durable=True, auto_delete=False)
        queue = channel.queue_declare(exclusive=True).queue
        channel.queue_bind(queue, tap.name, tap.key)
        channel.basic_consume(queue, no_ack=True, callback=lambda m: found.append(_raw("tap", m)))

    def _collect(self, channel: Any, queues: set[str], found: list[Raw], expect: int) -> None:
        """Look into the queues and at the consumers until as many arrived as will arrive."""
        deadline = monotonic() + 10
        while True:
            for queue in queues:
                found.extend(_fetch(channel, queue))
            with suppress(TimeoutError):
                self.connection.drain_events(timeout=0.01)
            if len(found) >= expect or monotonic() > deadline:
                return

    def _remove(self, channel: Any, taps: Any, declared: Any) -> None:
        for name, arguments in declared:
            if name == "queue_declare":
                channel.queue_delete(arguments["queue"])
        exchanges = {a["exchange"] for name, a in declared if name == "exchange_declare"}
        for exchange in exchanges | {tap.name for tap in taps}:
            if exchange.startswith(self._prefix):
                channel.exchange_delete(exchange)


def _fetch(channel: Any, queue: str) -> Iterator[Raw]:
    while message := channel.basic_get(queue, no_ack=True):
        yield _raw(queue, message)


def _raw(queue: str, message: Any) -> Raw:
    info = message.delivery_info
    properties = {**message.properties}
    return Raw(
        queue, info["exchange"], info["routing_key"], message.property_bytes, properties,
        message.body.encode() if isinstance(message.body, str) else bytes(message.body),
    )  # fmt: skip


@contextmanager
def _recording(declared: list[tuple[str, dict[str, Any]]]) -> Iterator[None]:
    patches = [patch.object(Channel, name, _recorder(name, declared)) for name in DECLARATIONS]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


def _recorder(name: str, declared: list[tuple[str, dict[str, Any]]]) -> Any:
    original = getattr(Channel, name)
    signature = inspect.signature(original)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        declared.append((name, {k: v for k, v in bound.arguments.items() if k != "self"}))
        return original(self, *args, **kwargs)

    return call


@contextmanager
def _keeping_property_bytes() -> Iterator[None]:
    original = AmqpMessage.inbound_header

    def header(self: Any, buf: bytes, offset: int = 0) -> Any:
        self.property_bytes = bytes(buf[offset:])
        return original(self, buf, offset)

    with patch.object(AmqpMessage, "inbound_header", header):
        yield


class RedisTap:
    """Sees the lists, the bindings and what is sent to channels."""

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self.client = redis.Redis.from_url(url)
        self._prefix = prefix

    def close(self) -> None:
        self._remove()
        self.client.close()

    @contextmanager
    def watch(self, taps: tuple[Topic, ...] = (), expect: int = 0) -> Iterator[dict[str, Any]]:
        seen: dict[str, Any] = {}
        for tap in taps:
            self._bind(tap)
        with self.client.pubsub() as pubsub:
            pubsub.psubscribe(f"*{self._prefix}*")
            pubsub.get_message(timeout=5)
            yield seen
            seen["sent to channels"] = list(self._heard(pubsub))
        seen["declared"] = {
            key: sorted(self.client.smembers(key))
            for key in self.client.keys(f"_kombu.binding.{self._prefix}*")
        }
        seen["messages"] = {
            key: [_without_tag(entry) for entry in self.client.lrange(key, 0, -1)]
            for key in self.client.keys(f"{self._prefix}*")
            if self.client.type(key) == b"list"
        }
        self._remove()

    def _heard(self, pubsub: Any) -> Iterator[tuple[bytes, str]]:
        """Everything up to a word of our own, which comes last."""
        self.client.publish(f"{self._prefix}.end", "end")
        while (message := pubsub.get_message(timeout=5)) and message["data"] != b"end":
            yield message["channel"], _without_tag(message["data"])

    def _bind(self, tap: Topic) -> None:
        """Through kombu: the type of an exchange is known only to the process that declared it."""
        queue = Queue(
            f"{self._prefix}.tap.{tap.name.rpartition('.')[2]}",
            Exchange(tap.name, tap.type), tap.key,
        )  # fmt: skip
        with Address(self._url) as connection:
            queue(connection.default_channel).declare()

    def _remove(self) -> None:
        keys = self.client.keys(f"*{self._prefix}*")
        if keys:
            self.client.delete(*keys)


def _without_tag(entry: bytes) -> str:
    return DELIVERY_TAG.sub('"delivery_tag": ""', entry.decode())
