"""A result is subscribed to when it is waited for, and no subscription gets lost."""

from __future__ import annotations

from typing import Any

import pytest

from django_integration.celery_hooks.result_backends import stay_offline


class Consumer:
    """A result consumer as Celery's backends have one; away while `error` is set."""

    def __init__(self) -> None:
        self.subscribed: list[str] = []
        self.cancelled: list[str] = []
        self.error: Exception | None = None

    def consume_from(self, task_id: str) -> None:
        if self.error is not None:
            raise self.error
        self.subscribed.append(task_id)

    def cancel_for(self, task_id: str) -> None:
        self.cancelled.append(task_id)

    def on_wait_for_pending(self, result: Any) -> None:
        pass


class Backend:
    """A result backend with such a consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self.result_consumer = consumer

    def on_task_call(self, producer: Any, task_id: str) -> None:
        pass


@pytest.fixture
def consumer() -> Any:
    consumer = Consumer()
    stay_offline(Backend(consumer))
    return consumer


def test_a_result_is_subscribed_to_when_it_is_waited_for(consumer: Any) -> None:
    consumer.consume_from("a")
    consumer.consume_from("b")
    assert consumer.subscribed == []
    consumer.cancel_for("b")
    consumer.on_wait_for_pending(None)
    assert (consumer.subscribed, consumer.cancelled) == (["a"], [])
    consumer.cancel_for("a")
    assert consumer.cancelled == ["a"]


def test_a_backend_that_is_away_is_asked_again_by_the_next_wait(consumer: Any) -> None:
    consumer.consume_from("a")
    consumer.error = ConnectionError("away")
    with pytest.raises(ConnectionError):
        consumer.on_wait_for_pending(None)
    consumer.error = None
    consumer.on_wait_for_pending(None)
    assert consumer.subscribed == ["a"]
