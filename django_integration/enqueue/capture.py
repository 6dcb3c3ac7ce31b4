"""The capturing producer: it takes the place of the pool's producer and keeps what it is handed.

Celery builds the message and calls `publish()`; kombu serialises, compresses and asks its channel
to send. Both do so unmodified: only the channel is ours, and it sends nothing. What the transport
would refuse to encode is refused here, with the transport's own error, before there is a row; and
so is what it would encode, but an AMQP broker would end the connection or channel for.
The next step of the path is `django_integration.enqueue.enqueuer`.
"""

from __future__ import annotations

import math
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from kombu import Exchange, Producer
from kombu.exceptions import EncodeError

from celery_outbox_steps.messages import Message

_NO_EXCHANGE = Exchange("")
_INT64 = range(-(2**63), 2**63)
_SIMPLE = {str, bool, type(None)}
_DELIVERY_MODES = (None, 1, 2)


class CapturingProducer(Producer):  # type: ignore[misc]
    """One per call: after `send_task` its `messages` are the task and perhaps its event."""

    def __init__(self, connection: Any) -> None:
        super().__init__(None, exchange=_NO_EXCHANGE, auto_declare=False)
        self.__connection__ = connection
        self.channel = self
        self.messages: list[Message] = []
        self.body: Any = None
        self._declared: list[Any] = []

    def __repr__(self) -> str:
        """Not kombu's, which shows the channel."""
        return f"<{type(self).__name__}: {len(self.messages)} messages>"

    def publish(self, body: Any, **options: Any) -> Any:
        """Let kombu do all of its work; only `retry` needs a connection, and there is none."""
        if self.body is None:
            self.body = body
        return super().publish(body, **dict(options, retry=False))

    def maybe_declare(self, entity: Any, *_: Any, **__: Any) -> None:
        """Remember what the relay has to declare."""
        self._declared.append(entity)

    def revive(self, channel: Any) -> None:
        """Nothing to revive: there is no connection that could have been lost."""

    # The channel's side, as kombu's Producer calls it.

    def prepare_message(  # noqa: PLR0917  kombu's signature
        self,
        body: Any,
        priority: Any = None,
        content_type: Any = None,
        content_encoding: Any = None,
        headers: Any = None,
        properties: Any = None,
    ) -> Message:
        """Keep the parts as they are; kombu may still change them until they are sent."""
        return Message(body, content_type, content_encoding, headers, properties, priority, "", "")

    def basic_publish(
        self,
        message: Message,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,  # noqa: FBT001  kombu's signature
        **_: Any,
    ) -> None:
        """Complete the message and keep it, if the transport would have taken it."""
        message.exchange, message.routing_key, message.mandatory = exchange, routing_key, mandatory
        message.declare, self._declared = tuple(self._declared), []
        message.body = _bytes(message.body, message.content_encoding)
        if self.__connection__.transport.driver_type == "amqp" and not _is_simple(message):
            _check_for_amqp(message)
        self.messages.append(message)


def _bytes(body: Any, encoding: str | None) -> bytes:
    """kombu's text serialisers leave the encoding to the transport."""
    return body.encode(encoding or "utf-8") if isinstance(body, str) else bytes(body)


def _is_simple(message: Message) -> bool:
    """Whether AMQP can surely encode it: so for nearly every message, in a few microseconds."""
    properties, headers = message.properties, message.headers
    return (
        _fits(message.routing_key)
        and _fits(message.exchange)
        and isinstance(message.priority, int)
        and 0 <= message.priority <= 255
        and properties.keys() <= {"correlation_id", "reply_to", "delivery_mode", "expiration"}
        and properties.get("delivery_mode") in _DELIVERY_MODES
        and _fits(properties.get("correlation_id"))
        and _fits(properties.get("reply_to"))
        and set(map(type, headers)) <= {str}
        and max(map(len, headers), default=0) <= 63
        and all(
            _is_simple_value(name, value)
            for name, value in headers.items()
            if type(value) not in _SIMPLE
        )
    )


def _fits(text: Any) -> bool:
    """A short string of AMQP: at most 255 bytes. None and '' are written alike."""
    return text is None or (isinstance(text, str) and len(text) <= 63)


def _is_simple_value(name: str, value: Any) -> bool:
    if isinstance(value, int):
        return value in _INT64
    if name == "timelimit":
        return bool(value == [None, None])
    return isinstance(value, (list, dict)) and not value


def _check_for_amqp(message: Message) -> None:
    """Write the frames to nowhere, so that py-amqp raises what it would raise on sending.

    Options that AMQP has no property for are dropped here as they would be there.
    """
    from amqp import Message as AmqpMessage
    from amqp.method_framing import frame_writer
    from amqp.serialization import dumps

    _check_for_broker(message)
    known = {name for name, _ in AmqpMessage.PROPERTIES}
    message.properties = {k: v for k, v in message.properties.items() if k in known}
    nowhere = SimpleNamespace(frame_max=131072, bytes_sent=0, write=lambda _: None)
    arguments = dumps("Bssbb", (0, message.exchange, message.routing_key, False, False))
    content = AmqpMessage(
        message.body,
        priority=message.priority,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        application_headers=message.headers,
        **message.properties,
    )
    frame_writer(nowhere, nowhere)(1, 1, (60, 40), arguments, content)


def _check_for_broker(message: Message) -> None:
    """What py-amqp sends and RabbitMQ punishes: it would hit the rest of the relay's batch."""
    if message.properties.get("delivery_mode") not in _DELIVERY_MODES:
        raise EncodeError(
            f"delivery_mode={message.properties['delivery_mode']!r} does not exist in AMQP. "
            "It is 1 (transient) or 2 (persistent)."
        )
    for name, value in message.headers.items():
        if not _is_finite(value):
            raise EncodeError(
                f"Header {name!r} holds a number that is NaN or infinite, for which an AMQP broker "
                "closes the connection. Send it as text, or as an argument of the task."
            )


def _is_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return not isinstance(value, (float, Decimal)) or math.isfinite(value)
