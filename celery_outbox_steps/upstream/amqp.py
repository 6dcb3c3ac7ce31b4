"""py-amqp: the hooks of a channel, the frames of a message, and the bytes on the socket.

`publishers/amqp/channel.py` overrides the hooks, because py-amqp's own handlers of confirms and
closed channels do not say which message is affected. The rest is for speed (many messages in one
write) and to refuse, before it is sent, a message that the broker would close the connection for.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from amqp import Message as AmqpMessage
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from amqp.spec import Basic
from kombu.transport.pyamqp import Channel

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from celery_outbox_steps.messages import Message

__all__ = ["Basic", "Channel", "Wire", "dumps"]

CHANNEL_HOOKS = {
    "_on_basic_ack": ("self", "delivery_tag", "multiple"),
    "_on_basic_nack": ("self", "delivery_tag", "multiple"),
    "_on_basic_return": (
        "self",
        "reply_code",
        "reply_text",
        "exchange",
        "routing_key",
        "message",
    ),
    "_on_close": ("self", "reply_code", "reply_text", "class_id", "method_id"),
}
"""Methods of a channel that py-amqp calls when the broker answers, and that ours overrides."""

PROPERTIES: tuple[tuple[str, str], ...] = tuple(AmqpMessage.PROPERTIES)
"""AMQP's basic properties in the order of their flags, each with its type for `dumps`."""

FRAME_MAX = 131072
"""Bytes per frame that RabbitMQ and py-amqp agree on unless configured otherwise."""

_METHOD_FRAME = 1


class Transport(Protocol):
    """py-amqp's socket."""

    sock: socket.socket

    def write(self, data: bytes) -> None:
        """Send all of it, in the transport's own way (TCP or TLS)."""


class Wire(Protocol):
    """A py-amqp connection: what kombu calls `Connection.connection`."""

    connected: bool
    frame_max: int
    bytes_sent: int
    transport: Transport
    on_blocked: Callable[..., Any] | None
    on_unblocked: Callable[..., Any] | None

    def drain_events(self, timeout: float | None = None) -> Any:
        """Handle what the broker sent."""


def can_write_frames(wire: Wire) -> bool:
    """Whether `write_frames` works on this connection."""
    return callable(getattr(wire.transport, "write", None)) and isinstance(wire.frame_max, int)


def write_frames(wire: Wire, data: bytes, timeout: float) -> None:
    """Send frames without py-amqp's writer, which writes to the socket once per message."""
    wire.transport.sock.settimeout(timeout)
    wire.transport.write(data)
    wire.bytes_sent += 1  # py-amqp sends a heartbeat if this has not changed for a while


@contextmanager
def socket_timeout(wire: Wire, seconds: float) -> Iterator[None]:
    """Limit the time of every read and write in a block, including py-amqp's own waits."""
    sock = wire.transport.sock
    before = sock.gettimeout()
    sock.settimeout(seconds)
    try:
        yield
    finally:
        with suppress(OSError):
            sock.settimeout(before)


def as_amqp(message: Message) -> AmqpMessage:
    """The message as kombu's own AMQP transport would prepare it."""
    return AmqpMessage(
        message.body,
        priority=message.priority,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        application_headers=message.headers,
        **message.properties,
    )


def publish_arguments(exchange: str, routing_key: str, *, mandatory: bool) -> bytes:
    """The arguments of the method basic.publish."""
    return bytes(dumps("Bssbb", (0, exchange, routing_key, mandatory, False)))


def header_size(message: Message) -> int:
    """Bytes of the message's content header: its properties, and 12 bytes before them."""
    return len(as_amqp(message)._serialize_properties()) + 12


def frames_by_pyamqp(message: Message, channel: int, frame_max: int, *, mandatory: bool) -> bytes:
    """What py-amqp itself would write for this message. Raises what it would raise."""
    written: list[bytes] = []
    recorder = SimpleNamespace(write=lambda data: written.append(bytes(data)))
    write_frame = frame_writer(SimpleNamespace(frame_max=frame_max, bytes_sent=0), recorder)
    arguments = publish_arguments(message.exchange, message.routing_key, mandatory=mandatory)
    write_frame(_METHOD_FRAME, channel, Basic.Publish, arguments, as_amqp(message))
    return b"".join(written)
