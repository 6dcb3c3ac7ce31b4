"""Where code or tests of others rely on how Celery itself behaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from celery import chord, group
from celery.app.task import Task
from celery.signals import after_task_publish
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from kombu import Producer

from django_integration.enqueue import bulk
from django_integration.enqueue.capture import CapturingProducer
from django_integration.enqueue.rows import CHUNK_ROWS
from tests.harness.databases import redis_url
from tests.proj.relaying import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]

# -- groups made of generators -------------------------------------------------------------------


@pytest.mark.parametrize("in_transaction", [True, False])
def test_a_group_of_a_generator_is_written_per_chunk(
    add: Any, in_transaction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "LONGEST_WAIT", 60.0)
    seen: list[int] = []
    signatures = (add.s(number) for number in range(CHUNK_ROWS + 9))

    def watched() -> Iterator[Any]:
        for number, signature in enumerate(signatures):
            if number in {CHUNK_ROWS - 1, CHUNK_ROWS + 8}:
                seen.append(len(rows()))
            yield signature

    if in_transaction:
        with transaction.atomic():
            group(watched()).apply_async()
    else:
        group(watched()).apply_async()
    assert seen == [0, CHUNK_ROWS]
    assert len(rows()) == CHUNK_ROWS + 9


@pytest.mark.redis
def test_a_chord_header_of_a_slow_generator_is_written_as_it_comes(
    make_app: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "LONGEST_WAIT", 0.0)  # as if every item took longer
    add = make_app(backend=redis_url()).tasks["enqueue.add"]
    sent, seen = [], []
    after_task_publish.connect(lambda **_: sent.append(1), weak=False)

    def header() -> Iterator[Any]:
        for number in range(8):
            seen.append((len(sent), len(rows())))
            yield add.s(number)

    try:
        chord(header(), add.si(1))()
    finally:
        after_task_publish.receivers.pop()
    assert seen[2] == (1, 1)
    assert all(published == stored for published, stored in seen)
    assert len(rows()) == 8


def test_a_slow_generator_inside_of_a_transaction_is_one_insert(
    add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "LONGEST_WAIT", 0.0)
    with transaction.atomic(), CaptureQueriesContext(connection) as captured:
        group(add.s(number) for number in range(5)).apply_async()
    assert len(captured) == 1


# -- tests that replace parts of Celery ----------------------------------------------------------


@pytest.mark.parametrize("in_bulk", [False, True])
def test_a_send_that_is_replaced_stores_nothing(app: Any, add: Any, in_bulk: bool) -> None:
    with mock.patch.object(app.amqp, "send_task_message") as send:
        if in_bulk:
            with app.outbox_bulk():
                result = add.delay(1)
        else:
            result = add.delay(1)
    assert result.id
    assert send.called
    assert rows() == []


def test_a_publish_that_is_replaced_stores_nothing(add: Any) -> None:
    with mock.patch.object(Producer, "_publish"):
        assert add.delay(1).id
    assert rows() == []


@pytest.mark.parametrize("method", ["retry", "replace"])
def test_a_method_that_is_replaced_on_the_class_is_called(add: Any, method: str) -> None:
    add.delay(1)
    with mock.patch.object(Task, method, return_value="replaced") as plain:
        assert getattr(add, method)("argument") == "replaced"
    plain.assert_called_once_with("argument")
    with mock.patch.object(Task, method, autospec=True) as bound:
        getattr(add, method)("argument")
    bound.assert_called_once_with(add, "argument")


# -- odds and ends -------------------------------------------------------------------------------


def test_the_producer_can_be_printed(app: Any) -> None:
    assert repr(CapturingProducer(app.connection_for_write())) == "<CapturingProducer: 0 messages>"


def test_a_producers_context_can_be_entered_again(make_app: Callable[..., Any]) -> None:
    context = make_app(broker="memory://").producer_or_acquire()
    for _ in range(2):
        with context as producer:
            assert isinstance(producer, Producer)


def test_a_given_producer_is_handed_back(app: Any) -> None:
    given = object()
    with app.producer_or_acquire(given) as producer:
        assert producer is given


def test_anything_can_be_put_into_the_registry(app: Any) -> None:
    app.tasks["x"] = 42
    assert app.tasks["x"] == 42
