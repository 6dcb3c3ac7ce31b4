"""NOTIFY for destinations: their relays are named, each at most once per interval and process."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from celery_outbox_steps import wakeups
from django_integration.enqueue import writer
from django_integration.schema import CHANNEL, DELIVERIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]
DESTINATIONS = {
    name: {"url": "amqp://guest@127.0.0.1:1//", "exchange": "domain"} for name in ("events", "lake")
}


class Boom(Exception):
    pass


@pytest.fixture
def app(make_app: Callable[..., Any]) -> Any:
    return make_app(outbox_destinations=DESTINATIONS)


@pytest.fixture
def heard() -> Iterator[Callable[[], list[str]]]:
    """The destinations that were named since the last look, and "" for the app's own broker."""
    session = connections.create_connection("default")
    named: list[str] = []

    def note(notification: Any) -> None:
        is_own = notification.channel == CHANNEL
        named.append("" if is_own else notification.payload)

    def look() -> list[str]:
        with session.cursor() as cursor:
            cursor.execute("SELECT 1")
        found, named[:] = sorted(named), []
        return found

    with session.cursor() as cursor:
        cursor.execute(f"LISTEN {CHANNEL}")
        cursor.execute(f"LISTEN {DELIVERIES.channel}")
    session.connection.add_notify_handler(note)
    yield look
    session.close()


@pytest.fixture
def interval(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let the interval between two NOTIFYs be that long."""
    return lambda seconds: monkeypatch.setattr(writer, "NOTIFY_INTERVAL", seconds)


def test_each_destination_is_named_once_and_the_apps_own_relays_are_left_alone(
    app: Any, heard: Callable[[], list[str]]
) -> None:
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        for _ in range(5):
            app.outbox.publish("order.paid", to=["events", "lake"])
        assert heard() == []
    assert heard() == ["events", "lake"]
    assert sum("pg_notify" in each["sql"] for each in queries) == 1


def test_tasks_and_events_of_a_transaction_wake_each_their_own(
    app: Any, heard: Callable[[], list[str]]
) -> None:
    with transaction.atomic(), app.outbox_bulk():
        app.tasks["enqueue.add"].delay(1)
        app.outbox.publish("order.paid", to="events", key="k")
    assert heard() == ["", "events"]


def test_events_within_the_interval_share_a_notify_for_their_destination(
    app: Any, heard: Callable[[], list[str]], interval: Callable[[float], None]
) -> None:
    interval(60)
    for _ in range(3):
        app.outbox.publish("order.paid", to="events")
    assert heard() == ["events"]
    app.outbox.publish("order.paid", to="lake")
    assert heard() == ["lake"]


def test_a_transaction_that_commits_late_makes_up_for_its_notify(
    app: Any, heard: Callable[[], list[str]], interval: Callable[[float], None]
) -> None:
    interval(60)
    app.outbox.publish("order.paid", to="events")
    with transaction.atomic():
        app.outbox.publish("order.paid", to="events")
        interval(0)  # as if the time had passed
        assert heard() == ["events"]
    assert heard() == ["events"]


@pytest.mark.parametrize(("countdown", "told"), [(0.5, ["events"]), (86_400, [])])
def test_an_event_for_later_sends_one_only_if_it_is_due_soon(
    app: Any, heard: Callable[[], list[str]], interval: Callable[[float], None],
    countdown: float, told: list[str],
) -> None:  # fmt: skip
    interval(60)
    app.outbox.publish("order.paid", to="events")
    assert heard() == ["events"]
    with transaction.atomic():
        app.outbox.publish("order.paid", to="events", countdown=countdown)
    assert heard() == told


def test_an_event_for_later_does_not_spare_that_of_the_next_one(
    app: Any, heard: Callable[[], list[str]]
) -> None:
    with transaction.atomic():
        app.outbox.publish("order.paid", to="events", countdown=86_400)
        app.outbox.publish("order.paid", to="events")
    assert heard() == ["events"]


def test_a_rollback_sends_none(app: Any, heard: Callable[[], list[str]]) -> None:
    with suppress(Boom), transaction.atomic():
        app.outbox.publish("order.paid", to="events")
        raise Boom
    assert heard() == []


def test_relays_of_the_same_process_are_woken_by_the_commit(make_app: Callable[..., Any]) -> None:
    app = make_app(outbox_destinations=DESTINATIONS, outbox_notify=False)
    woken: list[int] = []

    def wake() -> None:
        woken.append(1)

    name = wakeups.for_destination("default", "events")
    wakeups.register(name, wake)
    try:
        with transaction.atomic():
            app.outbox.publish("order.paid", to="events")
            assert woken == []
        assert woken == [1]
        app.outbox.publish("order.paid", to="lake")
        assert woken == [1], "it was not for this one"
    finally:
        wakeups.unregister(name, wake)
