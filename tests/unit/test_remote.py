"""Who pauses every worker pauses the outbox, also without a worker and without a broker."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_outbox_steps.testing import MemoryStore
from django_integration import OutboxCelery

NOWHERE = "amqp://127.0.0.1:1//"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def app_of(store: MemoryStore, broker: str = "memory://") -> Any:
    app = OutboxCelery("remote", broker=broker, set_as_current=False)
    app.conf.update(outbox_store=lambda _: [store], broker_transport_options={"max_retries": 0})
    return app


def test_a_pause_without_a_destination_is_written(store: MemoryStore) -> None:
    control = app_of(store).control
    control.broadcast("outbox_pause", arguments={"reason": "upgrade"})
    pause = store.fleet().pause
    assert pause is not None
    assert pause.reason == "upgrade"
    assert "@" in pause.paused_by
    control.broadcast("outbox_resume")
    assert store.fleet().pause is None


def test_a_pause_of_one_worker_is_not(store: MemoryStore) -> None:
    app_of(store).control.broadcast("outbox_pause", destination=["celery@a"])
    assert store.fleet().pause is None


@pytest.mark.parametrize(("broker", "why"), [("memory://", "did not answer"), (NOWHERE, "told")])
def test_a_pause_that_nobody_hears_is_no_error(store: MemoryStore, broker: str, why: str) -> None:
    said: list[Any] = []
    replies = app_of(store, broker).control.broadcast(
        "outbox_pause", reply=True, timeout=0.1, callback=said.append
    )
    assert replies == said
    assert "outbox paused" in replies[0]["database"]["ok"]
    assert why in replies[0]["database"]["ok"]
    assert store.fleet().pause is not None


def test_other_commands_are_celery_s(store: MemoryStore) -> None:
    assert app_of(store).control.broadcast("ping", reply=True, timeout=0.1) == []


def test_a_plain_app_with_this_control_revokes_as_celery_does() -> None:
    app = Celery("plain", broker="memory://", set_as_current=False)
    app.control_cls = "celery_outbox_steps.remote:OutboxControl"
    assert app.control.revoke("some-id", reply=True, timeout=0.1) == []
