"""One message as the bytes of its AMQP 0-9-1 frames: equal to py-amqp's, several times faster.

py-amqp serialises headers value by value through a BytesIO and writes each message to the socket
separately. Here a message becomes one bytes object, so that many share one write. Types that the
fast path does not support (dates, decimals, subclasses) and errors are left to py-amqp; a
property-based test shows that the two are equal, byte for byte. `pipeline` writes the bytes.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any

from amqp.exceptions import ContentTooLarge

from celery_outbox_steps.upstream.amqp import (
    PROPERTIES,
    Basic,
    dumps,
    frames_by_pyamqp,
    header_size,
    publish_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_outbox_steps.messages import Message

_frame_head = Struct(">BHI").pack
_content_head = Struct(">HHQH").pack
_long = Struct(">I").pack
_tagged_long = Struct(">cI").pack
_tagged_int = Struct(">ci").pack
_tagged_longlong = Struct(">cq").pack
_tagged_double = Struct(">cd").pack

_METHOD, _HEADER, _BODY, _END = 1, 2, 3, b"\xce"
_ENVELOPE = 8
"""Bytes that a frame adds to its payload: type, channel, size and end mark."""


def publish_frames(message: Message, channel: int, frame_max: int, *, mandatory: bool) -> bytes:
    """The frames that publish `message` on that channel. Raises what py-amqp would raise."""
    method = _publish_method(message.exchange, message.routing_key, mandatory)
    try:
        header = _content_header(message)
    except Exception:  # noqa: BLE001  py-amqp decides about everything that fails here
        if header_size(message) + _ENVELOPE > frame_max:
            raise _too_large(header_size(message), frame_max) from None
        return frames_by_pyamqp(message, channel, frame_max, mandatory=mandatory)
    if len(header) + _ENVELOPE > frame_max:
        raise _too_large(len(header), frame_max)
    frames = [
        *(_frame_head(_METHOD, channel, len(method)), method, _END),
        *(_frame_head(_HEADER, channel, len(header)), header, _END),
    ]
    body, longest = message.body, frame_max - _ENVELOPE
    for start in range(0, len(body), longest):
        part = body if len(body) <= longest else body[start : start + longest]
        frames += (_frame_head(_BODY, channel, len(part)), part, _END)
    return b"".join(frames)


@lru_cache(maxsize=1024)
def _publish_method(exchange: str, routing_key: str, mandatory: bool) -> bytes:  # noqa: FBT001  lru_cache
    signature = b"".join(number.to_bytes(2, "big") for number in Basic.Publish)
    return signature + publish_arguments(exchange, routing_key, mandatory=mandatory)


def _content_header(message: Message) -> bytes:
    flags = 0
    encoded = []
    properties = message.properties
    for name, encode, flag in _PROPERTIES:
        value = getattr(message, _FIELDS[name]) if name in _FIELDS else properties.get(name)
        if value is not None:
            flags |= flag
            encoded.append(encode(value))
    return _content_head(Basic.CLASS_ID, 0, len(message.body), flags) + b"".join(encoded)


def _table(table: dict[str, Any]) -> bytes:
    data = b"".join([_name(name) + _ITEM[type(value)](value) for name, value in table.items()])
    return _long(len(data)) + data


def _short(text: str) -> bytes:
    value = text.encode("utf-8", "surrogatepass")
    return bytes((len(value),)) + value


_name = lru_cache(maxsize=1024)(_short)
"""Names of headers and content types: the same few in every message."""
_FIELDS = {
    "content_type": "content_type",
    "content_encoding": "content_encoding",
    "application_headers": "headers",
    "priority": "priority",
}
"""Properties that are fields of a Message."""
_ENCODE: dict[str, Callable[[Any], bytes]] = {
    "s": _short,
    "F": _table,
    "o": lambda value: bytes((value,)),
    "L": lambda value: bytes(dumps("L", (value,))),
}
_PROPERTIES = tuple(
    (name, _name if name.startswith("content_") else _ENCODE[kind], 1 << 15 - position)
    for position, (name, kind) in enumerate(PROPERTIES)
)


def _array(items: list[Any] | tuple[Any, ...]) -> bytes:
    data = b"".join([_ITEM[type(value)](value) for value in items])
    return _tagged_long(b"A", len(data)) + data


def _text(text: str) -> bytes:
    value = text.encode("utf-8", "surrogatepass")
    return _tagged_long(b"S", len(value)) + value


def _integer(number: int) -> bytes:
    if -2147483647 <= number <= 2147483647:
        return _tagged_int(b"I", number)
    return _tagged_longlong(b"L", number)


_ITEM: dict[type, Callable[[Any], bytes]] = {
    str: _text,
    bytes: lambda value: _tagged_long(b"S", len(value)) + value,
    type(None): lambda _: b"V",
    bool: lambda value: b"t\x01" if value else b"t\x00",
    int: _integer,
    float: lambda value: _tagged_double(b"d", value),
    list: _array,
    tuple: _array,
    dict: lambda value: b"F" + _table(value),
}


def _too_large(size: int, frame_max: int) -> ContentTooLarge:
    # RabbitMQ would close the connection (501), which would interrupt all other messages on it.
    return ContentTooLarge(
        f"the message's headers take {size} bytes and the broker's frame_max is {frame_max}"
    )
