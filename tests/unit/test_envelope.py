"""The envelope by itself: what goes in comes out, and only what is relative to now moves."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from kombu import Exchange, Queue, binding
from kombu.common import Broadcast

from celery_outbox_steps.envelope import (
    PLAIN_EMBED,
    SCHEMA_VERSION,
    ascii_text,
    open_envelope,
    seal,
)
from celery_outbox_steps.errors import EnvelopeError
from celery_outbox_steps.messages import ClaimedMessage, Message

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
BODY = f'[[1, "a"], {{"b": 2}}, {PLAIN_EMBED}]'.encode()


def message(body: bytes = BODY, **changes: Any) -> Message:
    fields: dict[str, Any] = {
        "content_type": "application/json", "content_encoding": "utf-8", "headers": {"id": "x"},
        "properties": {"delivery_mode": 2}, "priority": 0, "exchange": "", "routing_key": "q",
    }  # fmt: skip
    return Message(body=body, **{**fields, **changes})


def row(sealed: Any, **changes: Any) -> ClaimedMessage:
    fields = dict.fromkeys(ClaimedMessage._fields)
    fields.update(id=1, task_id="x", task_name="t", retries=0, waited=0.0)
    fields.update(schema_version=SCHEMA_VERSION, **sealed._asdict())
    return ClaimedMessage(**{**fields, **changes})


def through(given: Message, now: datetime = NOW, *, waited: float = 0.0, **times: Any) -> Message:
    return open_envelope(row(seal(given, **times), waited=waited), now)


def test_a_plain_body_is_kept_in_its_parts_and_joined_again() -> None:
    sealed = seal(message())
    assert (sealed.args, sealed.kwargs, sealed.payload) == ('[1, "a"]', '{"b": 2}', None)
    assert "embed" not in json.loads(sealed.options)
    assert through(message()) == message()


def test_callbacks_are_kept() -> None:
    body = b'[[], {}, {"callbacks": [1], "errbacks": null, "chain": null, "chord": null}]'
    assert through(message(body)).body == body


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[", b"[]", b"[[]]", b"[[], {}]", b"[[], {}, {}] ", b"[[],{},{}]", b" [[], {}, {}]",
        b"[[], {}, {}, {}]", b'{"task": "protocol 1"}', b"[[1], {}, ", '[["ä"], {}, {}]'.encode(),
        b"\x80\x04pickle", b"[[\x00], {}, {}]", b"[" * 100_000,
    ],
)  # fmt: skip
def test_any_other_body_is_kept_verbatim(body: bytes) -> None:
    assert through(message(body)).body == body


def test_another_content_type_is_kept_verbatim_with_reprs_for_people() -> None:
    given = message(b"\x80\x04", content_type="application/x-python-serialize",
                    content_encoding="binary")  # fmt: skip
    sealed = seal(given, argsrepr="('ä\x00',)", kwargsrepr="{}")
    assert (sealed.args, sealed.payload) == ("('\\xe4\\x00',)", b"\x80\x04")
    assert through(given) == given


def test_a_compressed_body_is_kept_verbatim() -> None:
    given = message(headers={"id": "x", "compression": "application/x-gzip"})
    assert seal(given).payload == BODY
    assert through(given) == given


def test_values_that_json_has_no_type_for_survive_in_headers() -> None:
    headers = {"bytes": b"\xff", "decimal": Decimal("1.10"), "deep": [{"at": NOW}], "nan": None}
    assert through(message(headers=headers)).headers == headers


@pytest.mark.parametrize("value", [{"\x00": "x"}, {"\x00": "bytes", "more": 1}, {"\x00": b"x"}])
def test_values_that_look_like_our_own_mark_survive(value: Any) -> None:
    assert through(message(headers={"a": value})).headers == {"a": value}


# -- times ---------------------------------------------------------------------------------------


def expiring(expires: Any) -> dict[str, Any]:
    return {"expires": expires}


@pytest.mark.parametrize(("waited", "left"), [(0, "60000"), (12.5, "47500"), (60, "0"), (99, "0")])
def test_the_ttl_is_what_is_left_of_it(waited: float, left: str) -> None:
    given = message(properties={"expiration": "60000"})
    expires = (NOW + timedelta(seconds=60)).isoformat()
    opened = through(given, waited=waited, expires=expires)
    assert opened.properties["expiration"] == left


@pytest.mark.parametrize("skew", [-3600, 3600])
def test_a_wrong_clock_changes_no_ttl_and_no_delay(skew: float) -> None:
    now = NOW + timedelta(seconds=skew)
    given = message(properties={"expiration": "60000"})
    expires = (NOW + timedelta(seconds=60)).isoformat()
    assert through(given, now, expires=expires).properties["expiration"] == "60000"
    eta = (NOW + timedelta(seconds=100)).isoformat()
    assert through(delayed(100), now, eta=eta).routing_key == delayed(100).routing_key


@pytest.mark.parametrize("expires", [None, "", "soon", 17, b"x", ["x"]])
def test_a_ttl_without_a_time_stays_as_it_is(expires: Any) -> None:
    given = message(properties={"expiration": "60000"})
    assert through(given, expires=expires).properties["expiration"] == "60000"


def delayed(seconds: int) -> Message:
    bits = ".".join(f"{seconds:028b}")
    return message(exchange="celery_delayed_27", routing_key=f"{bits}.some.queue")


@pytest.mark.parametrize(
    ("waited", "left"), [(0, 100), (0.004, 100), (1, 99), (99.7, 0), (100, 0), (500, 0), (-5, 100)]
)
def test_a_native_delay_is_what_is_left_of_it(waited: float, left: int) -> None:
    eta = (NOW + timedelta(seconds=100)).isoformat()
    opened = through(delayed(100), waited=waited, eta=eta)
    assert opened.routing_key == delayed(left).routing_key


def test_an_eta_without_a_native_delay_changes_nothing() -> None:
    given = message(headers={"eta": NOW.isoformat()})
    assert through(given, NOW + timedelta(days=1), eta=NOW.isoformat()) == given


# -- queues and exchanges ------------------------------------------------------------------------


ENTITIES = {
    "queue": Queue("q"),
    "exchange": Exchange("e", type="topic", durable=False, arguments={"a": 1}),
    "everything": Queue(
        "q", Exchange("e", type="fanout", delivery_mode=1), routing_key="r",
        queue_arguments={"x-queue-type": "quorum"}, binding_arguments={"b": 1}, durable=False,
        exclusive=True, auto_delete=True, expires=60.5, message_ttl=3, max_length=5,
        max_length_bytes=6, max_priority=7, no_declare=True, consumer_arguments={"c": 1},
    ),
    "bindings": Queue(
        "q", [binding(Exchange("e", "topic"), routing_key="a.#", arguments={"x": 1})]
    ),
    "broadcast": Broadcast("all", queue="mine"),
    "passive": Exchange("e", passive=True, auto_delete=True),
}  # fmt: skip


@pytest.mark.parametrize("name", ENTITIES)
def test_entities_survive(name: str) -> None:
    given = ENTITIES[name]
    (found,) = through(message(declare=(given,))).declare
    cls = Exchange if isinstance(given, Exchange) else Queue
    assert type(found) is cls
    assert found.can_cache_declaration == given.can_cache_declaration
    for attribute, _ in cls.attrs:
        if attribute != "bindings":
            assert getattr(found, attribute) == getattr(given, attribute), attribute
    if cls is Queue:
        assert list(map(_described, found.bindings)) == list(map(_described, given.bindings))


def _described(bound: Any) -> tuple[Any, ...]:
    return bound.exchange.name, bound.exchange.type, bound.routing_key, bound.arguments


def test_the_same_entity_is_one_object_so_that_it_is_declared_once() -> None:
    first, second = (through(message(declare=(Queue("q"),))).declare[0] for _ in range(2))
    assert first is second


# -- rows that are no messages -------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"schema_version": 2}, {"schema_version": 0}, {"options": ""}, {"options": "[]"},
        {"options": "null"}, {"options": "{}"}, {"options": '{"headers": 1, "properties": {}}'},
        {"options": "{" * 5000},
    ],
)  # fmt: skip
def test_a_row_that_holds_no_message_is_one_clear_error(changes: dict[str, Any]) -> None:
    with pytest.raises(EnvelopeError):
        open_envelope(row(seal(message()), **changes), NOW)


def test_text_for_people_is_ascii() -> None:
    assert ascii_text("ä\x00\ud800🐇") == "\\xe4\\x00\\ud800\\U0001f407"
