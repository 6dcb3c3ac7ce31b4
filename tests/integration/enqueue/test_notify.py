"""NOTIFY: at most one per interval and process, and none missing when a commit comes late."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_integration.enqueue import writer
from django_integration.schema import CHANNEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]


class Boom(Exception):
    pass


@pytest.fixture
def heard() -> Iterator[Callable[[], int]]:
    """How many notifications were delivered so far; a statement brings in those that are there."""
    session = connections.create_connection("default")
    count = 0

    def note(*_: Any) -> None:
        nonlocal count
        count += 1

    def total() -> int:
        with session.cursor() as cursor:
            cursor.execute("SELECT 1")
        return count

    with session.cursor() as cursor:
        cursor.execute(f"LISTEN {CHANNEL}")
    session.connection.add_notify_handler(note)
    yield total
    session.close()


@pytest.fixture
def interval(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let the interval between two NOTIFYs be that long."""
    return lambda seconds: monkeypatch.setattr(writer, "NOTIFY_INTERVAL", seconds)


def test_calls_within_the_interval_share_a_notify(
    add: Any, heard: Callable[[], int], interval: Callable[[float], None]
) -> None:
    interval(60)
    for _ in range(3):
        add.delay(1)
    with transaction.atomic():
        add.delay(2)
    assert heard() == 1


def test_a_transaction_that_commits_late_makes_up_for_its_notify(
    add: Any, heard: Callable[[], int], interval: Callable[[float], None]
) -> None:
    interval(60)
    add.delay(1)
    with transaction.atomic():
        add.delay(2)
        interval(0)  # as if the time had passed
        assert heard() == 1
    assert heard() == 2


def test_it_is_spared_where_another_transaction_has_notified_since(
    app: Any, add: Any, heard: Callable[[], int], interval: Callable[[float], None]
) -> None:
    interval(60)
    add.delay(1)
    with transaction.atomic():
        add.delay(2)
        interval(0)
        other = connections.create_connection("default")
        app.outbox._writer.write(other, [row_of(app)])
        other.close()
        interval(60)
    assert heard() == 2


def row_of(app: Any) -> Any:
    producer, result = app.capture(("another.task",), {})
    return app.outbox._row("another.task", result.id, producer, None)


@pytest.mark.parametrize(
    ("countdown", "told"), [(0.5, 1), (1.1, 1), (1.9, 1), (2.1, 0), (86_400, 0)]
)
def test_a_call_for_later_sends_one_if_it_is_due_before_the_relay_looks_again(
    add: Any, heard: Callable[[], int], interval: Callable[[float], None], countdown: float,
    told: int,
) -> None:  # fmt: skip
    """It looks when it polls, but not twice a second: after up to two seconds."""
    interval(0)
    with transaction.atomic():
        add.apply_async((1,), countdown=countdown)
        interval(60)
    assert heard() == told


@pytest.mark.parametrize("when", ["countdown", "eta"])
def test_a_call_for_later_that_commits_late_sends_one_only_if_it_is_due_soon(
    add: Any, heard: Callable[[], int], interval: Callable[[float], None], when: str
) -> None:
    def call(seconds: float) -> None:
        eta = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        with transaction.atomic():
            add.apply_async((1,), **{when: seconds if when == "countdown" else eta})
            connection.cursor().execute("SELECT pg_sleep(0.3)")

    interval(0.2)
    call(3600)
    assert heard() == 0
    call(2.2)
    assert heard() == 1


def test_a_rollback_sends_none(
    add: Any, heard: Callable[[], int], interval: Callable[[float], None]
) -> None:
    interval(60)
    add.delay(1)
    with suppress(Boom), transaction.atomic():
        add.delay(2)
        interval(0)
        raise Boom
    assert heard() == 1


def test_a_transaction_sends_one_however_many_calls_it_makes(
    add: Any, heard: Callable[[], int], interval: Callable[[float], None]
) -> None:
    interval(0)
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        for number in range(5):
            add.delay(number)
        interval(60)
    assert heard() == 1
    assert sum("pg_notify" in query["sql"] for query in queries) == 1


def test_a_lost_session_after_the_commit_does_not_reach_the_caller(
    add: Any, interval: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    interval(60)
    add.delay(1)
    with transaction.atomic():
        transaction.on_commit(connection.connection.close)
        add.delay(2)
        interval(0)
    connection.close()
    assert "Error calling" not in caplog.text


def test_switched_off_there_is_none(
    make_app: Callable[..., Any], heard: Callable[[], int], interval: Callable[[float], None]
) -> None:
    interval(60)
    add = make_app(outbox_notify=False).tasks["enqueue.add"]
    with transaction.atomic():
        add.delay(1)
        interval(0)
    assert heard() == 0
