"""Rows that hold no message, or one that no broker takes: they end alone, and stop no other row."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from tests import helpers

if TYPE_CHECKING:
    from tests.security.conftest import Bench

pytestmark = [pytest.mark.postgresql, pytest.mark.rabbitmq]

SECRET = "sk-live-51H8-do-not-log"


def options(**changes: Any) -> str:
    """The options of a good row to the queue QUEUE, with something wrong."""
    good = {
        "headers": {"id": "x", "task": "hostile", "lang": "py"},
        "properties": {"delivery_mode": 2, "correlation_id": "x"},
        "priority": 0, "exchange": "", "routing_key": "QUEUE",
    }  # fmt: skip
    return json.dumps({**good, **changes})


def header(value: Any) -> str:
    return options(headers={"id": "x", "task": "hostile", "value": value})


def entity(**fields: Any) -> str:
    name = f"outbox-security-{fields['name']}" if fields["name"] == "q" else fields["name"]
    return json.dumps({"kind": "queue", **fields, "name": name, "auto_delete": True})


NO_MESSAGE = {
    "empty": "",
    "no JSON": "{",
    "null": "null",
    "a list": "[]",
    "an empty object": "{}",
    "two documents": "{} {}",
    "a byte order mark": "\ufeff{}",
    "deep nesting": "[" * 100_000 + "]" * 100_000,
    "deep nesting in headers": '{"headers": ' + '{"a":' * 50_000 + "1" + "}" * 50_001,
    "an absurd number": "9" * 100_000,
    "headers are a list": options(headers=[1]),
    "headers are null": options(headers=None),
    "properties are a text": options(properties="x"),
    "a type that is none": options(type=7),
    "a type with one part": options(type=["application/json"]),
    "declare a number": options(declare=7),
    "declare a text that is none": options(declare=["{"]),
    "declare an unknown kind": options(declare=['{"kind": "bomb"}']),
    "declare a queue of an exchange that is none": options(declare=[entity(name="q", exchange=7)]),
    "expires without a TTL": options(expires="2030-01-01T00:00:00"),
    "expires after no number": options(expires="x", properties={"expiration": "soon"}),
    "an eta for no delay": options(eta="2030-01-01T00:00:00"),
    "an event that is none": options(event=5),
    "an event without a body": options(event={}),
    "a mark of no type": header({"\x00": "nope", "value": 1}),
    "a mark with no value": header({"\x00": "bytes", "value": 5}),
}
NOT_SENDABLE = {
    "an exchange that is a number": options(exchange=5),
    "an exchange that is a list": options(exchange=[]),
    "a routing key that is an object": options(routing_key={}),
    "a routing key of 1000 characters": options(routing_key="x" * 1000),
    "an exchange that is an object": options(exchange={"name": "x"}),
    "a queue whose name is a list": options(declare=[entity(name=[1])]),
    "a queue whose name is an object": options(declare=[entity(name={"a": 1})]),
    "a queue whose name is a number": options(declare=[entity(name=7)]),
    "a queue with arguments that are none": options(declare=[entity(name="q", queue_arguments=7)]),
    "a queue of a nameless exchange": options(declare=[entity(name="q", exchange={"name": [1]})]),
    "a queue with an absurd length": options(declare=[entity(name="q", max_length=2**90)]),
    "a queue that is bound to a list": options(
        declare=[entity(name="q", bindings=[{"routing_key": []}])]
    ),
    "a priority that is a text": options(priority="high"),
    "an absurd priority": options(priority=10**30),
    "a negative priority": options(priority=-1),
    "a header of 2**80": header(2**80),
    "a header name of 1000 characters": options(headers={"id": "x", "task": "t", "n" * 1000: 1}),
    "headers nested deeply": header(json.loads("[" * 200 + "]" * 200)),
    "a content type that is a number": options(type=[5, 5]),
    "a property that is an object": options(properties={"correlation_id": {"a": 1}}),
    "an absurd delivery mode": options(properties={"delivery_mode": 10**6}),
    "an expiration that is none": options(properties={"expiration": "soon"}),
    "headers larger than a frame": header("x" * 300_000),
    "many headers": options(headers={f"h{n}": "x" * 50 for n in range(10_000)}),
    "an exchange that is not there": options(exchange="outbox-security-nowhere"),
    "an exchange with a NUL": options(exchange="a\x00b"),
    "a routing key with a NUL": options(routing_key="a\x00b"),
    "a lone surrogate": options(routing_key="\ud800"),
    "an embed that is no text": options(embed=7),
}
# Strange, but a message: the broker takes it, and so does plain Celery's.
NEIGHBOURS = 3


@pytest.mark.parametrize("text", NO_MESSAGE.values(), ids=NO_MESSAGE)
def test_a_row_without_a_message_is_a_dead_letter_at_once(bench: Bench, text: str) -> None:
    before = [bench.call() for _ in range(NEIGHBOURS)]
    hostile = bench.insert(options=text.replace("QUEUE", bench.queue))
    after = [bench.call() for _ in range(NEIGHBOURS)]
    result = bench.tick()
    assert (result.published, result.dead, result.outage) == (2 * NEIGHBOURS, 1, "")
    assert set(bench.dead()) == {hostile}
    assert bench.rows() == set()
    assert [message.headers["id"] for message in bench.arrived()] == before + after


@pytest.mark.parametrize("text", NOT_SENDABLE.values(), ids=NOT_SENDABLE)
def test_a_message_that_no_broker_takes_fails_alone(bench: Bench, text: str) -> None:
    neighbours = [bench.call() for _ in range(NEIGHBOURS)]
    hostile = bench.insert(options=text.replace("QUEUE", bench.queue))
    neighbours += [bench.call() for _ in range(NEIGHBOURS)]

    def over() -> bool:
        result = bench.tick()
        assert result.outage == "", "one row must not look like an outage"
        return not bench.rows()

    helpers.wait_for(over, 15, lambda: str(bench.dead()))
    arrived = [message.headers.get("id") for message in bench.arrived()]
    assert [each for each in arrived if each in set(neighbours)] == neighbours
    assert set(bench.dead()) == {hostile} or len(arrived) == 2 * NEIGHBOURS + 1


def test_arguments_are_not_parsed(bench: Bench) -> None:
    """What is wrong there is the worker's to reject, as it would be with plain Celery."""
    bench.insert(args="no JSON", options=options(routing_key=bench.queue))
    bench.call()
    bench.arrived()  # declares the queue
    assert bench.tick().published == 2
    assert len(bench.arrived()) == 2


@pytest.mark.parametrize("version", [0, 2, 999, 32767])
def test_an_unknown_version_waits(bench: Bench, version: int) -> None:
    waiting = bench.insert(schema_version=version, options="{")
    bench.call()
    assert bench.tick().published == 1
    assert bench.tick().claimed == 0
    assert bench.rows() == {waiting}
    assert bench.dead() == {}
    assert bench.sql("SELECT retries, claimed_by FROM celery_outbox") == [(0, None)]


def test_a_body_of_absurd_size(bench: Bench) -> None:
    """Larger than RabbitMQ takes (128 MiB): a dead letter, and the connection lives."""
    bench.arrived()
    neighbours = [bench.call() for _ in range(NEIGHBOURS)]
    hostile = bench.insert(
        payload=b"x" * (2**27 + 1), options=options(routing_key=bench.queue, type=["x/y", "binary"])
    )
    helpers.wait_for(lambda: bench.tick() and not bench.rows(), 60, lambda: str(bench.dead()))
    assert set(bench.dead()) == {hostile}
    assert [message.headers["id"] for message in bench.arrived()] == neighbours


def test_no_payload_in_logs_or_errors(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever goes wrong, what a task was called with stays in its row."""
    from celery_outbox_steps.observe.journal import Journal

    caplog.set_level(logging.DEBUG)
    journal = Journal("default", "security")
    arguments = {"args": json.dumps([SECRET]), "kwargs": json.dumps({"card": SECRET})}
    for text in [*NO_MESSAGE.values(), *NOT_SENDABLE.values()]:
        bench.insert(options=text.replace("QUEUE", bench.queue), **arguments)
        bench.insert(payload=SECRET.encode(), options=text.replace("QUEUE", bench.queue))
    bench.call("task", SECRET, card=SECRET)
    bench.call("task", SECRET, queue="outbox-security-else", card=SECRET)

    def over() -> bool:
        journal.batch(bench.tick())
        return not bench.rows()

    helpers.wait_for(over, 60, lambda: str(bench.rows()))
    assert len(caplog.records) > len(NO_MESSAGE)
    told = [f"{record.getMessage()} {vars(record)}" for record in caplog.records]
    assert [text for text in told if SECRET in text] == []
    assert [reason for reason in bench.dead().values() if SECRET in reason] == []
