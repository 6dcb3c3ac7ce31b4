"""A call that is wanted later waits in the table until it is due by the database's clock."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from celery import chain, chord, group
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from celery_outbox_steps import wakeups
from django_integration.models import CeleryOutbox
from tests.proj.relaying import messages, rows

if TYPE_CHECKING:
    from collections.abc import Callable

VENDORS = ("postgresql", "mysql", "sqlite")
NOW = datetime.now(timezone.utc)
LATER = NOW + timedelta(days=30)


@pytest.fixture(params=VENDORS)
def database(request: pytest.FixtureRequest, use_database: Callable[..., None]) -> str:
    use_database(request.param)
    return str(request.param)


@pytest.fixture
def on_postgresql(use_database: Callable[..., None]) -> None:
    use_database("postgresql")


def due_in(row: Any) -> float:
    """Seconds from the row's creation, by the database's clock, to its due time."""
    return float((row.due_at - row.created_at).total_seconds())


@pytest.mark.parametrize("countdown", [0.25, 5, 90.5, 86_400 * 400])
def test_a_countdown_counts_by_the_clock_of_the_database(
    database: str, add: Any, countdown: float
) -> None:
    add.apply_async((1,), countdown=countdown)
    (row,) = rows()
    assert due_in(row) == pytest.approx(countdown, abs=0.1)
    assert row.eta == pytest.approx(row.due_at, abs=timedelta(seconds=0.1))


@pytest.mark.parametrize(
    "eta",
    [
        LATER,
        LATER.isoformat(),
        LATER.replace(tzinfo=None),
        LATER.astimezone(timezone(timedelta(hours=-9))),
        LATER.astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat(),
    ],
    ids=["aware", "text", "naive", "another zone", "text of another zone"],
)
def test_an_eta_is_the_due_time_in_whatever_form_it_is_given(
    database: str, add: Any, eta: Any
) -> None:
    add.apply_async((1,), eta=eta)
    (row,) = rows()
    assert row.due_at == row.eta == pytest.approx(LATER, abs=timedelta(milliseconds=1))


def test_a_time_that_has_passed_is_due_at_once(database: str, add: Any) -> None:
    add.apply_async((1,), eta=NOW - timedelta(days=3))
    add.apply_async((2,), countdown=-100)
    for row in rows():
        assert due_in(row) == pytest.approx(0, abs=0.1)
        assert row.eta < row.created_at
    assert CeleryOutbox.objects.due().count() == 2


@pytest.mark.parametrize("eta", [datetime.min, datetime.max])
def test_the_ends_of_the_calendar_are_times_of_every_time_zone(
    database: str, add: Any, eta: datetime
) -> None:
    add.apply_async((1,), eta=eta)
    (row,) = rows()
    for hours in (-12, 14):
        assert row.eta.astimezone(timezone(timedelta(hours=hours))).year in (1969, 1970, 9998)


@pytest.mark.parametrize("countdown", ["soon", float("nan"), 1e12])
def test_a_countdown_that_is_none_is_named(database: str, add: Any, countdown: Any) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError), match="countdown must be seconds"):
        add.apply_async((1,), countdown=countdown)
    assert rows() == []


def test_both_kinds_and_calls_without_a_time_can_share_an_insert(
    database: str, app: Any, add: Any
) -> None:
    with CaptureQueriesContext(connection) as statements, app.outbox_bulk():
        add.apply_async((1,), countdown=60)
        add.delay(2)
        add.apply_async((3,), eta=LATER)
    assert len(statements) == 1
    first, second, third = rows()
    assert due_in(first) == pytest.approx(60, abs=0.1)
    assert (due_in(second) < 0.1, second.eta) == (True, None)
    assert third.due_at == pytest.approx(LATER, abs=timedelta(milliseconds=1))
    assert CeleryOutbox.objects.scheduled().count() == 2


HELD: dict[str, Callable[[Any], Any]] = {
    "apply_async": lambda add: add.apply_async((1,), countdown=60),
    "by name": lambda add: add.app.send_task("some.where", (1,), countdown=60),
    "by position": lambda add: add.app.send_task("some.where", (1,), {}, 60),
    "signature": lambda add: add.s(1).set(countdown=60).delay(),
    "group": lambda add: group(add.s(1), add.s(2)).apply_async(countdown=60),
    "first of a chain": lambda add: chain(add.s(1), add.s(2)).apply_async(countdown=60),
    "chord header": lambda add: chord([add.s(1).set(countdown=60)], add.si(2)).apply_async(),
    "async": lambda add: async_to_sync(add.app.asend_task)("some.where", (1,), countdown=60),
    "aapply_async": lambda add: async_to_sync(add.aapply_async)((1,), countdown=60),
    "with expires": lambda add: add.apply_async((1,), countdown=60, expires=90),
    "on commit": lambda add: add.apply_async_on_commit((1,), countdown=60),
}


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize("call", HELD.values(), ids=HELD)
def test_every_way_to_call_a_task_is_held(call: Any, make_app: Callable[..., Any]) -> None:
    add = make_app(backend="cache+memory://").tasks["enqueue.add"]
    call(add)
    found = rows()
    assert found
    assert all(due_in(row) == pytest.approx(60, abs=0.5) for row in found)
    for message in messages(NOW):
        assert message.headers["eta"] is None
        assert message.headers["outbox_eta"]
        assert "celery_delayed" not in message.exchange


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize(
    ("hold", "countdown", "is_held"),
    [(0, 0.1, True), (60, 59, False), (60, 61, True), (None, 10_000, False),
     (timedelta(hours=1), 3_500, False), (timedelta(hours=1), 3_700, True)],
)  # fmt: skip
def test_only_what_is_further_ahead_than_the_setting_is_held(
    hold: Any, countdown: float, is_held: bool, make_app: Callable[..., Any]
) -> None:
    add = make_app(outbox_hold=hold).tasks["enqueue.add"]
    add.apply_async((1,), countdown=countdown)
    add.apply_async((2,), eta=datetime.now(timezone.utc) + timedelta(seconds=countdown))
    for row, message in zip(rows(), messages(NOW), strict=True):
        assert (row.eta is not None) == is_held
        assert (message.headers["eta"] is None) == is_held
        assert (due_in(row) > 0.05) == is_held


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize("options", [{}, {"countdown": 0}, {"countdown": None, "eta": None}])
def test_a_call_without_a_time_is_due_at_once_and_names_no_eta(
    add: Any, options: dict[str, Any]
) -> None:
    with CaptureQueriesContext(connection) as statements:
        add.apply_async((1,), **options)
    (row,) = rows()
    assert (row.eta, due_in(row) < 0.05) == (None, True)
    assert "eta" not in statements[0]["sql"].partition(") ")[0]
    assert "outbox_eta" not in messages(NOW)[0].headers


@pytest.mark.usefixtures("on_postgresql")
def test_the_countdown_wins_over_the_eta_as_with_celery(add: Any) -> None:
    add.apply_async((1,), eta=LATER, countdown=60)
    assert due_in(rows()[0]) == pytest.approx(60, abs=0.1)


@pytest.mark.usefixtures("on_postgresql")
def test_a_countdown_counts_from_the_call_and_not_from_the_begin_of_the_transaction(
    add: Any,
) -> None:
    with transaction.atomic():
        connection.cursor().execute("SELECT pg_sleep(0.5)")
        add.apply_async((1,), countdown=10)
        connection.cursor().execute("SELECT statement_timestamp()")
    (row,) = rows()
    assert due_in(row) == pytest.approx(10, abs=0.1)


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize(
    ("times", "wakes"),
    [
        ({"countdown": 0.5}, 1),
        ({"eta": NOW}, 1),
        ({"countdown": 3600}, 0),
        ({"eta": LATER}, 0),
    ],
    ids=str,
)
def test_a_relay_in_this_process_is_woken_only_for_what_is_due_soon(
    add: Any, times: dict[str, Any], wakes: int
) -> None:
    woken: list[int] = []
    wake = partial(woken.append, 1)
    wakeups.register("default", wake)
    try:
        add.apply_async((1,), **times)
    finally:
        wakeups.unregister("default", wake)
    assert len(woken) == wakes


@pytest.mark.usefixtures("on_postgresql")
def test_an_excluded_task_is_not_held(make_app: Callable[..., Any]) -> None:
    app = make_app(broker="memory://", outbox_exclude_tasks=["enqueue.*"])
    app.tasks["enqueue.add"].apply_async((1,), countdown=60)
    assert rows() == []
