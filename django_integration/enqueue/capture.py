"""The capturing producer: Celery publishes to it instead of to the pool's producer.

Celery builds the message and calls `publish()`; kombu serialises, compresses and asks its channel
to send. Both run unmodified: only the channel is ours, and it sends nothing. A message that the
transport can't encode is refused here, before a row exists, with the transport's own error; so is
a message for which an AMQP broker would close the channel or connection.
The next step of the path is `django_integration.enqueue.enqueuer`.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from kombu import Exchange, Producer
from kombu.exceptions import EncodeError

from celery_outbox_steps.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_EXCHANGE = Exchange("")
_INT64 = range(-(2**63), 2**63)
_SIMPLE = {str, bool, type(None)}
_DELIVERY_MODES = (None, 1, 2)


class CapturingProducer(Producer):  # type: ignore[misc]
    """One per call: after `send_task` its `messages` are the task and perhaps its event.

    `is_own`: the message is for the app's own broker, and not for a destination.
    """

    connection: Any = None  # not kombu's property, which would ask the channel for it

    def __init__(self, connection: Any, *, is_own: bool = True) -> None:
        super().__init__(None, exchange=_NO_EXCHANGE, auto_declare=False)
        self.connection = connection
        self.channel = self
        self.is_own = is_own
        self.messages: list[Message] = []
        self.body: Any = None
        self._declared: list[Any] = []

    def __repr__(self) -> str:
        """Not kombu's, which shows the channel."""
        return f"<{type(self).__name__}: {len(self.messages)} messages>"

    def publish(self, body: Any, **options: Any) -> Any:
        """Let kombu do all its work except `retry`, which needs a connection."""
        if self.body is None:
            self.body = body
        return super().publish(body, **dict(options, retry=False))

    def maybe_declare(self, entity: Any, *_: Any, **__: Any) -> None:
        """Remember what the relay has to declare."""
        self._declared.append(entity)

    def revive(self, channel: Any) -> None:
        """Nothing to revive: there is no connection that could have been lost."""

    # The channel's methods, as kombu's Producer calls them.

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
        body: Any = message.body
        is_text = isinstance(body, str)  # kombu leaves its encoding to the transport
        message.body = body.encode(message.content_encoding or "utf-8") if is_text else bytes(body)
        if self.connection.transport.driver_type == "amqp" and not _is_simple(message):
            _check_for_amqp(message)
        self.messages.append(message)


def _is_simple(message: Message) -> bool:
    """Whether AMQP can certainly encode it: a check of microseconds that most messages pass."""
    properties, headers = message.properties, message.headers
    if not (
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
    ):
        return False
    for name, value in headers.items():
        if type(value) not in _SIMPLE and not _is_simple_value(name, value):
            return False
    return True


def _fits(text: Any) -> bool:
    """Whether it surely fits AMQP's short string of 255 bytes. None and '' are written alike."""
    return text is None or (isinstance(text, str) and len(text) <= 63)


def _is_simple_value(name: str, value: Any) -> bool:
    if isinstance(value, int):
        return value in _INT64
    if name == "timelimit":
        return bool(value == [None, None])
    return isinstance(value, (list, dict)) and not value


def _check_for_amqp(message: Message) -> None:
    """Let py-amqp encode it, so that it raises the error that sending would raise.

    Options without an AMQP property are dropped, as they would be on sending.
    """
    from celery_outbox_steps.upstream.amqp import FRAME_MAX, PROPERTIES, frames_by_pyamqp

    _check_for_broker(message)
    names = {name for name, _ in PROPERTIES}
    message.properties = {k: v for k, v in message.properties.items() if k in names}
    frames_by_pyamqp(message, 1, FRAME_MAX, mandatory=False)


def refuse_unsendable_headers(headers: Mapping[str, Any]) -> None:
    """Raise the error with which AMQP would refuse a message with these headers."""
    _check_for_amqp(Message(b"", "", "", dict(headers), {}, None, "", ""))


def _check_for_broker(message: Message) -> None:
    """Refuse what py-amqp encodes, but RabbitMQ answers by closing the channel or connection."""
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
