"""The twins for tests, as far as the Store contract (tests/contract) does not speak of them."""

from __future__ import annotations

import pytest

from celery_outbox_steps.errors import Outage
from celery_outbox_steps.messages import Message
from celery_outbox_steps.testing import MemoryStore, RecordingPublisher


def message(task: str) -> Message:
    return Message(b"[]", "application/json", "utf-8", {"task": task}, {}, None, "", "celery")


def errors(receipts):
    return [receipt.error for receipt in receipts]


def test_rows_can_be_put_and_looked_at():
    store = MemoryStore(clock=lambda: 100.0)
    row = store.add("shop.mail", args="[7]", due_in=5)
    assert (store.rows[row].args, store.rows[row].due_at) == ("[7]", 105.0)


def test_what_was_published_is_remembered_in_order():
    publisher = RecordingPublisher()
    messages = [message("a"), message("b")]
    assert errors(publisher.publish(messages, 1.0)) == [None, None]
    assert (publisher.published, publisher.batches) == (messages, 1)


def test_a_task_or_a_position_can_be_made_to_fail():
    publisher, first, second = RecordingPublisher(), ValueError(), KeyError()
    publisher.fail_task("a", first)
    publisher.fail_index(2, second)
    batch = [message(name) for name in "abc"]
    assert errors(publisher.publish(batch, 1.0)) == [first, None, second]
    assert errors(publisher.publish(batch, 1.0)) == [first, None, None]


def test_a_broker_that_is_down_takes_nothing_until_it_heals():
    publisher = RecordingPublisher()
    publisher.down = ConnectionError()
    with pytest.raises(Outage):
        errors(publisher.publish([message("a")], 1.0))
    assert not publisher.reachable(1.0)
    publisher.heal()
    assert errors(publisher.publish([message("a")], 1.0)) == [None]
    assert len(publisher.published) == 1


def test_what_is_not_asked_for_is_not_sent():
    publisher = RecordingPublisher()
    next(publisher.publish([message("a"), message("b")], 1.0))
    assert len(publisher.published) == 1
