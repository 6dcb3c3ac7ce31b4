"""Our frames are py-amqp's frames, byte for byte. Needs no broker."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from amqp import spec
from amqp.basic_message import Message as AmqpMessage
from amqp.exceptions import ContentTooLarge
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celery_outbox_steps.messages import Message
from celery_outbox_steps.publishers.amqp.frames import publish_frames
from tests.integration.publishers.conftest import task_message

text = st.text(st.characters(), max_size=30) | st.text("\ud800\udfff\x00aä", max_size=5)
scalars = (
    text
    | st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.integers(-(2**31) - 2, 2**31 + 2)
    | st.floats(allow_nan=False)
    | st.binary(max_size=20)
    | st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1))
    | st.decimals(-1000, 1000, places=2)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(text, inner, max_size=4)
    ),
    max_leaves=12,
)
headers = st.dictionaries(text, values, max_size=8)
short = st.none() | st.text(st.characters(), max_size=60)
properties = st.fixed_dictionaries(
    {},
    optional={
        "delivery_mode": st.none() | st.integers(0, 255),
        "correlation_id": short,
        "reply_to": short,
        "expiration": short,
        "message_id": short,
        "timestamp": st.none() | st.integers(0, 2**63),
        "type": short,
        "user_id": short,
        "app_id": short,
        "cluster_id": short,
        "not_a_property": short,
    },
)
messages = st.builds(
    Message,
    body=st.binary(max_size=100) | st.integers(0, 20_000).map(lambda n: b"x" * n),
    content_type=short,
    content_encoding=short,
    headers=headers | st.none(),
    properties=properties,
    priority=st.none() | st.integers(0, 255),
    exchange=st.text(st.characters(), max_size=60),
    routing_key=st.text(st.characters(), max_size=60),
)


def by_pyamqp(message: Message, channel: int, frame_max: int, *, mandatory: bool) -> bytes:
    """What `Channel.basic_publish` writes to the socket for kombu's prepared message."""
    written: list[bytes] = []
    transport = SimpleNamespace(write=lambda data: written.append(bytes(data)))
    write = frame_writer(SimpleNamespace(frame_max=frame_max, bytes_sent=0), transport)
    content = AmqpMessage(
        message.body,
        priority=message.priority,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        application_headers=message.headers,
        **message.properties,
    )
    arguments = dumps("Bssbb", (0, message.exchange, message.routing_key, mandatory, False))
    write(1, channel, spec.Basic.Publish, arguments, content)
    return b"".join(written)


def outcome(function: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as exc:
        return type(exc), str(exc)


@settings(max_examples=1500, deadline=None)
@given(
    message=messages,
    channel=st.integers(1, 65535),
    frame_max=st.sampled_from([4096, 8192, 131072]),
    mandatory=st.booleans(),
)
@example(task_message("celery"), 1, 131072, True)
@example(task_message("celery", body=b"x" * 131064), 1, 131072, False)
@example(task_message("celery", body=b"x" * 131065), 1, 131072, False)
@example(task_message("celery", body=b""), 1, 131072, False)
def test_frames_equal_those_of_pyamqp(
    message: Message, channel: int, frame_max: int, mandatory: bool
) -> None:
    ours = outcome(publish_frames, message, channel, frame_max, mandatory=mandatory)
    theirs = outcome(by_pyamqp, message, channel, frame_max, mandatory=mandatory)
    if isinstance(ours, tuple) and ours[0] is ContentTooLarge:
        assert _header_frame(theirs) > frame_max
        return
    assert ours == theirs


def _header_frame(frames: bytes) -> int:
    method = 8 + int.from_bytes(frames[3:7], "big")
    return 8 + int.from_bytes(frames[method + 3 : method + 7], "big")


@pytest.mark.parametrize(
    "poison",
    [
        {"headers": {"value": object()}},
        {"headers": {"value": 2**70}},
        {"headers": {"k" * 256: 1}},
        {"headers": {1: 1}},
        {"routing_key": "r" * 256},
        {"exchange": "e" * 256},
        {"priority": 256},
        {"priority": "high"},
        {"properties": {"correlation_id": "c" * 256}},
        {"properties": {"delivery_mode": "persistent"}},
    ],
    ids=str,
)
def test_what_pyamqp_refuses_is_refused_with_its_error(poison: dict[str, Any]) -> None:
    message = task_message(**poison)
    ours = outcome(publish_frames, message, 1, 131072, mandatory=True)
    assert ours == outcome(by_pyamqp, message, 1, 131072, mandatory=True)
    assert isinstance(ours, tuple)


def test_values_that_take_the_slow_path() -> None:
    now = datetime(2024, 5, 6, tzinfo=timezone.utc)
    message = task_message("q", headers={"when": now, "price": Decimal("1.50"), "s": _Text("x")})
    frames = publish_frames(message, 1, 131072, mandatory=True)
    assert frames == by_pyamqp(message, 1, 131072, mandatory=True)


class _Text(str):
    __slots__ = ()


def test_headers_larger_than_a_frame_are_refused_before_they_break_the_connection() -> None:
    for extra in ("x", datetime(2024, 5, 6, tzinfo=timezone.utc)):
        message = task_message("q", headers={"huge": "h" * 131072, "extra": extra})
        with pytest.raises(ContentTooLarge, match="frame_max is 131072"):
            publish_frames(message, 1, 131072, mandatory=True)
