"""The four signals: documented arguments, after the commit, and receivers that can't hurt."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from django.db import connections, transaction

from celery_outbox_steps import OutboxRelayStep, operate
from celery_outbox_steps.errors import Nacked
from celery_outbox_steps.observe.recorders import recorders_for
from celery_outbox_steps.relay.tick import Relay
from celery_outbox_steps.settings import RelayConfig
from celery_outbox_steps.testing import MemoryStore, RecordingPublisher
from django_integration import signals
from django_integration.store import DjangoStore
from django_integration.testing import FakeRelay, Outbox
from tests.helpers import wait_for

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]


class Heard:
    """A receiver that remembers, and that looks at the database on a connection of its own."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.waiting: list[int] = []
        self.error: Exception | None = None
        self.__qualname__ = "Heard"

    def __call__(self, sender: Any, signal: Any, **arguments: Any) -> None:
        self.calls.append({"sender": sender, **arguments})
        self.waiting.append(_rows_as_others_see_them())
        if self.error is not None:
            raise self.error

    def one(self) -> dict[str, Any]:
        (call,) = self.calls
        return call


def _rows_as_others_see_them() -> int:
    with connections["default"].copy().cursor() as cursor:
        cursor.execute("SELECT count(*) FROM celery_outbox")
        return int(cursor.fetchone()[0])


@pytest.fixture
def listen() -> Iterator[Callable[[Any], Heard]]:
    connected = []

    def connect(signal: Any) -> Heard:
        heard = Heard()
        signal.connect(heard, weak=False)
        connected.append((signal, heard))
        return heard

    yield connect
    for signal, heard in connected:
        signal.disconnect(heard)


def test_created_fires_in_the_callers_transaction(app: Any, listen: Callable[[Any], Heard]) -> None:
    created = listen(signals.outbox_message_created)
    with transaction.atomic():
        result = app.send_task("shop.ship_order")
        assert created.one() == {
            "sender": type(app), "task_id": result.id, "task_name": "shop.ship_order"
        }  # fmt: skip
        assert created.waiting == [0]  # no other connection sees the row yet


def test_sent_fires_after_the_settle_committed(
    app: Any, listen: Callable[[Any], Heard], watch: Callable[..., Any]
) -> None:
    sent = listen(signals.outbox_message_sent)
    with transaction.atomic():
        result = app.send_task("shop.ship_order")
    watch(app).counted("published", 1)
    assert sent.one() == {
        "sender": DjangoStore, "task_id": result.id, "task_name": "shop.ship_order"
    }  # fmt: skip
    assert sent.waiting == [0]


@pytest.fixture
def broker() -> str:
    """Of this test alone: kombu keeps one pool per URL, which other tests may have closed."""
    return f"memory://{uuid.uuid4().hex}"


def test_the_worker_of_a_plain_celery_app_sends_them(
    app: Any, listen: Callable[[Any], Heard], broker: str
) -> None:
    sent = listen(signals.outbox_message_sent)
    with transaction.atomic():
        result = app.send_task("shop.ship_order")
    plain = Celery("plain", broker=broker, set_as_current=False)
    worker = SimpleNamespace(app=plain, pool_cls=None, hostname="celery@test")
    relays = OutboxRelayStep(worker).create(worker)
    relays.start()
    relays.broker_up()
    try:
        wait_for(lambda: sent.calls)
    finally:
        relays.stop(5)
    assert (sent.one()["sender"], sent.one()["task_id"]) == (DjangoStore, result.id)


def test_drain_sends_them(
    make_app: Callable[..., Any], listen: Callable[[Any], Heard], broker: str
) -> None:
    app, sent = make_app(broker), listen(signals.outbox_message_sent)
    with transaction.atomic():
        result = app.send_task("shop.ship_order")
    operate.drain(app)
    assert (sent.one()["sender"], sent.one()["task_id"]) == (DjangoStore, result.id)
    assert sent.waiting == [0]


def test_the_fake_relay_of_tests_sends_them(
    app: Any, listen: Callable[[Any], Heard], settings: Any
) -> None:
    settings.CELERY_OUTBOX_APP = app
    failed = listen(signals.outbox_message_failed)
    with transaction.atomic():
        result = app.send_task("shop.ship_order")
    relay = FakeRelay(Outbox())
    relay.fail("shop.ship_order")
    relay.run()
    assert (failed.one()["sender"], failed.one()["task_id"]) == (DjangoStore, result.id)


def test_another_store_sends_none(listen: Callable[[Any], Heard]) -> None:
    dead = listen(signals.outbox_message_dead_lettered)
    app = Celery("plain", broker="memory://", set_as_current=False)
    store = MemoryStore()
    store.add("shop.ship_order", options="no message")
    recorders = recorders_for(app)
    relay = Relay(app, store, RecordingPublisher(), RelayConfig(), "me", recorders=recorders)
    assert relay.run_once().dead == 1
    assert dead.calls == []


def test_failed_and_dead_lettered_tell_what_happened(
    app: Any, listen: Callable[[Any], Heard], watch: Callable[..., Any]
) -> None:
    failed = listen(signals.outbox_message_failed)
    dead = listen(signals.outbox_message_dead_lettered)
    with transaction.atomic():
        again = app.send_task("shop.again")
        never = [app.send_task("shop.never") for _ in range(2)]
    publisher = RecordingPublisher()
    publisher.fail_task("shop.again", Nacked("full"))
    publisher.fail_task("shop.never", ValueError("too large"))
    watch(app, publisher_factory=lambda *_: publisher).counted("dead", 2)
    assert failed.one() == {
        "sender": DjangoStore, "task_id": again.id, "task_name": "shop.again", "retries": 1
    }  # fmt: skip
    assert dead.one() == {
        "sender": DjangoStore,
        "task_ids": [result.id for result in never],
        "task_names": ["shop.never"] * 2,
    }
    assert dead.waiting == [1]  # only the one that will be tried again


def test_a_receiver_that_raises_is_logged_and_hurts_nobody(
    app: Any,
    listen: Callable[[Any], Heard],
    watch: Callable[..., Any],
    records: list[logging.LogRecord],
) -> None:
    first, second = listen(signals.outbox_message_sent), listen(signals.outbox_message_sent)
    first.error = LookupError("receiver is broken")
    created = listen(signals.outbox_message_created)
    created.error = LookupError("receiver is broken")
    with transaction.atomic():
        app.send_task("shop.ship_order")
    relay = watch(app)
    relay.counted("published", 1)
    assert len(second.calls) == 1
    assert relay.service.journal.counters["errors"] == 0
    told = [r for r in records if getattr(r, "event", "") == "celery_outbox_signal_error"]
    assert len(told) == 2
    assert all(record.exc_info for record in told)


def test_not_even_a_receiver_that_django_stumbles_over_hurts(
    app: Any, listen: Callable[[Any], Heard], records: list[logging.LogRecord]
) -> None:
    created = listen(signals.outbox_message_created)
    created.error = LookupError("receiver is broken")
    del created.__qualname__
    with transaction.atomic():
        app.send_task("shop.ship_order")
    assert [r for r in records if getattr(r, "event", "") == "celery_outbox_signal_error"]


def test_what_a_receiver_opens_in_the_relays_thread_is_closed_again(
    app: Any, watch: Callable[..., Any]
) -> None:
    from django_integration.models import CeleryOutbox

    seen = []

    def receiver(**_: Any) -> None:
        CeleryOutbox.objects.count()
        seen.append(connections["default"])

    signals.outbox_message_sent.connect(receiver)
    try:
        with transaction.atomic():
            app.send_task("shop.ship_order")
        watch(app).counted("published", 1)
    finally:
        signals.outbox_message_sent.disconnect(receiver)
    assert seen[0].connection is None


def test_listeners_are_looked_up_once_per_batch(
    app: Any, watch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    has_listeners = type(signals.outbox_message_sent).has_listeners

    def counted(self: Any, sender: Any = None) -> bool:
        asked.append(self)
        return has_listeners(self, sender)

    with transaction.atomic(), app.outbox_bulk():
        for _ in range(50):
            app.send_task("shop.ship_order")
    monkeypatch.setattr(type(signals.outbox_message_sent), "has_listeners", counted)
    watch(app).counted("published", 50)
    ours = {id(s) for name, s in vars(signals).items() if name.startswith("outbox_")}
    assert len([signal for signal in asked if id(signal) in ours]) == 3
