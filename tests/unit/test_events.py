"""An event's row becomes the message of its destination, or an error about this row alone."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from celery_outbox_steps.destinations import destinations
from celery_outbox_steps.envelope import EVENT_VERSION, FOR_DESTINATION, seal
from celery_outbox_steps.errors import EnvelopeError
from celery_outbox_steps.events import EventOpener, seal_event
from celery_outbox_steps.messages import ClaimedMessage, Message

NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=timezone.utc)
GIVEN: dict[str, Any] = {
    "source": "/shop",
    "time": NOW.isoformat(),
    "key": "order:7",
    "headers": {},
}
ROW = ClaimedMessage(
    1, "an-id", "order.paid", "", "", "", None, 0, EVENT_VERSION, None, None, None, None, 0.0
)


def opened(body: str | bytes = "{}", prefix: str = "ce-", **options: Any) -> Message:
    (to,) = destinations({"events": {"url": "amqp://h", **options}}).values()
    sealed = seal_event(body, "image/png", **GIVEN)
    row = ROW._replace(**sealed._asdict())
    return EventOpener(to, prefix, declare=True).open(row, NOW)


def test_json_is_sent_as_it_was_written() -> None:
    message = opened('{"b": 1,  "a": "\\u00eb"}')
    assert message.body == b'{"b": 1,  "a": "\\u00eb"}'
    assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")


def test_bytes_are_sent_as_they_were_given() -> None:
    message = opened(b"\x00\xff")
    assert message.body == b"\x00\xff"
    assert (message.content_type, message.content_encoding) == ("image/png", "binary")


def test_an_attribute_wins_over_a_header_of_the_call_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(GIVEN, "headers", {"ce-id": "forged", "ce-subject": "7"})
    headers = opened().headers
    assert (headers["ce-id"], headers["ce-subject"]) == ("an-id", "7")


def test_where_it_goes_is_the_destinations_at_the_time_of_publishing() -> None:
    topic = opened(exchange="domain", routing_key="{key}", mandatory=True)
    assert (topic.exchange, topic.routing_key, topic.mandatory) == ("domain", "order:7", True)
    assert [each.name for each in topic.declare] == ["domain"]
    queue = opened(queue="in", persistent=False)
    assert (queue.exchange, queue.routing_key) == ("", "in")
    assert [each.name for each in queue.declare] == ["in"]
    assert queue.properties == {"delivery_mode": 1, "message_id": "an-id"}
    assert opened().declare == ()


def test_without_permission_to_declare_nothing_is_declared() -> None:
    (to,) = destinations({"events": {"url": "amqp://h", "exchange": "domain"}}).values()
    row = ROW._replace(**seal_event("{}", "", **GIVEN)._asdict())
    assert EventOpener(to, "", declare=False).open(row, NOW).declare == ()


@pytest.mark.parametrize("options", ["", "[]", "{}", '{"source": "/"}', '{"headers": 5}'])
def test_a_row_that_holds_no_event_is_an_error_of_this_row(options: str) -> None:
    (to,) = destinations({"events": {"url": "amqp://h"}}).values()
    with pytest.raises(EnvelopeError, match="the row does not hold an event"):
        EventOpener(to, "", declare=True).open(ROW._replace(args="{}", options=options), NOW)


def test_a_tasks_row_is_opened_as_one() -> None:
    (to,) = destinations({"partner": {"url": "amqp://h"}}).values()
    task = Message(
        b"[[1], {}, {}]", "application/json", "utf-8", {"task": "t"}, {}, 0, "", "celery"
    )
    row = ROW._replace(**seal(task)._asdict(), schema_version=FOR_DESTINATION + 1)
    message = EventOpener(to, "ce-", declare=True).open(row, NOW)
    assert message.is_task
    assert (message.body, message.headers, message.routing_key) == (
        task.body,
        {"task": "t"},
        "celery",
    )


def test_a_version_of_a_later_release_is_refused() -> None:
    (to,) = destinations({"partner": {"url": "amqp://h"}}).values()
    with pytest.raises(EnvelopeError, match="schema version 102"):
        EventOpener(to, "ce-", declare=True).open(ROW._replace(schema_version=102), NOW)
