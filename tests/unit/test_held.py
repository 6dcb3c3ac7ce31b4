"""What the relay does with a held call: one header more, and nothing at all if it has expired."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu.utils.json import dumps

from celery_outbox_steps.relay.tick import Relay
from celery_outbox_steps.settings import RelayConfig
from celery_outbox_steps.testing import MemoryStore, RecordingPublisher


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def options(expires_in: float | None) -> str:
    times: dict[str, Any] = {} if expires_in is None else {"expires": "2026-01-01T00:01:00+00:00"}
    ttl = {} if expires_in is None else {"expiration": str(int(expires_in * 1000))}
    return dumps(
        {
            "headers": {"task": "tests.task", **times},
            "properties": ttl,
            "priority": 0,
            "exchange": "",
            "routing_key": "q",
            **times,
        }
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def publisher() -> RecordingPublisher:
    return RecordingPublisher()


@pytest.fixture
def relay(store: MemoryStore, publisher: RecordingPublisher, clock: Clock) -> Relay:
    app = Celery("held", set_as_current=False)
    return Relay(app, store, publisher, RelayConfig(), "me", clock=clock)


def test_the_wanted_time_is_a_header(
    relay: Relay, store: MemoryStore, publisher: RecordingPublisher, clock: Clock
) -> None:
    store.add(due_in=60, held=True, options=options(None))
    assert relay.run_once().claimed == 0
    clock.now += 60
    assert relay.run_once().published == 1
    (message,) = publisher.published
    assert message.headers["outbox_eta"] == "1970-01-12T13:47:40.000000+00:00"


def test_a_held_call_that_has_expired_is_not_published(
    relay: Relay, store: MemoryStore, publisher: RecordingPublisher, clock: Clock
) -> None:
    store.add(due_in=60, held=True, options=options(30))
    store.add(due_in=60, held=True, options=options(90))
    clock.now += 60
    result = relay.run_once()
    assert (result.claimed, result.expired, result.published) == (2, 1, 1)
    assert [message.properties["expiration"] for message in publisher.published] == ["30000"]
    assert (store.rows, store.dead_letters) == ({}, {})


def test_it_may_expire_while_the_broker_is_away(
    relay: Relay, store: MemoryStore, publisher: RecordingPublisher, clock: Clock
) -> None:
    store.add(due_in=60, held=True, options=options(90))
    clock.now += 60
    publisher.down = ConnectionRefusedError("away")
    assert relay.run_once().deferred == 1
    publisher.heal()
    clock.now += 60
    result = relay.run_once()
    assert (result.expired, result.published) == (1, 0)


def test_a_call_that_was_not_held_is_published_with_the_ttl_that_is_left_as_celery_would(
    relay: Relay, store: MemoryStore, publisher: RecordingPublisher, clock: Clock
) -> None:
    store.add(options=options(30))
    clock.now += 60
    assert relay.run_once().published == 1
    assert publisher.published[0].properties["expiration"] == "0"
