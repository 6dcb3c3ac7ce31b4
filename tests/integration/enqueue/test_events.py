"""`app.outbox.publish()`: a row per destination in the caller's transaction, or an error."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pydantic
import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import IntegrityError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext, override_settings
from kombu.serialization import loads

from celery_outbox_steps import wakeups
from celery_outbox_steps.errors import OutboxError
from django_integration.enqueue.enqueuer import TransactionRequired
from django_integration.models import CeleryOutbox, CeleryOutboxDelivery
from django_integration.signals import outbox_message_created

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VENDORS = [
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mysql", marks=pytest.mark.mysql),
    "sqlite",
]
DESTINATIONS = {
    "events": {"url": "amqp://guest@127.0.0.1:1//", "exchange": "domain"},
    "lake": {"url": "redis://127.0.0.1:1", "queue": "lake"},
    "packed": {"url": "redis://127.0.0.1:1", "serializer": "msgpack"},
    "keyed": {"url": "amqp://guest@127.0.0.1:1//", "routing_key": "{key}"},
}
NOW = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=timezone.utc)


class Boom(Exception):
    pass


@dataclass
class Address:
    city: str
    since: date


@dataclass
class Customer:
    id: UUID
    addresses: list[Address]


class Line(pydantic.BaseModel):
    sku: str
    price: Decimal


class Order(pydantic.BaseModel):
    number: int
    lines: list[Line]
    at: datetime


@pytest.fixture(params=VENDORS)
def database(request: pytest.FixtureRequest, use_database: Callable[..., None]) -> str:
    use_database(request.param)
    return str(request.param)


@pytest.fixture
def on_postgresql(use_database: Callable[..., None]) -> None:
    use_database("postgresql")


@pytest.fixture
def sqlite(use_database: Callable[..., None]) -> None:
    use_database("sqlite")


@pytest.fixture
def app(make_app: Callable[..., Any]) -> Any:
    return make_app(outbox_destinations=DESTINATIONS)


def stored(using: str = "default") -> list[CeleryOutboxDelivery]:
    return list(CeleryOutboxDelivery.objects.using(using).order_by("id"))


def options(row: CeleryOutboxDelivery) -> Any:
    return json.loads(row.options)


# -- in the caller's transaction ------------------------------------------------------------------


def test_one_row_for_each_destination_with_one_id(database: str, app: Any) -> None:
    with transaction.atomic():
        found = app.outbox.publish("order.paid", {"id": 7}, to=["events", "lake"], key="order:7")
        assert len(stored()) == 2
    rows = stored()
    assert [(row.task_id, row.task_name, row.destination) for row in rows] == [
        (found, "order.paid", "events"),
        (found, "order.paid", "lake"),
    ]
    assert {row.args for row in rows} == {'{"id": 7}'}
    assert {(row.kwargs, row.payload, row.retries, row.claimed_by) for row in rows} == {
        ("{}", None, 0, None)
    }
    assert len({row.order_key for row in rows}) == 2  # order is that of a destination
    assert options(rows[0]) == {
        "source": "/enqueue",
        "key": "order:7",
        "time": options(rows[1])["time"],
    }
    assert CeleryOutbox.objects.count() == 0


def test_a_rollback_takes_every_row(database: str, app: Any) -> None:
    with suppress(Boom), transaction.atomic():
        app.outbox.publish("order.paid", 1, to=["events", "lake"], key="k")
        with transaction.atomic():
            app.outbox.publish("order.paid", 2, to="events")
        raise Boom
    assert stored() == []


def test_without_a_transaction_all_rows_are_there_or_none(database: str, app: Any) -> None:
    app.outbox.publish("order.paid", 1, to=["events", "lake"], key="k")
    assert len(stored()) == 2
    CeleryOutboxDelivery.objects.all().delete()
    with connection.cursor() as cursor:  # the second row of an event is refused
        cursor.execute("CREATE UNIQUE INDEX once ON celery_outbox_delivery (task_id)")
    try:
        for key in ("k", None):
            with pytest.raises(IntegrityError):
                app.outbox.publish("order.paid", 1, to=["events", "lake"], key=key)
    finally:
        drop = " ON celery_outbox_delivery" if connection.vendor == "mysql" else ""
        with connection.cursor() as cursor:
            cursor.execute(f"DROP INDEX once{drop}")
    assert stored() == []


def test_the_database_that_the_call_names(app: Any, use_database: Callable[..., None]) -> None:
    use_database("sqlite")
    use_database("sqlite", alias="orders", name="orders")
    app.outbox.publish("order.paid", 1, to="events", using="orders")
    assert stored() == []
    assert len(stored("orders")) == 1


@pytest.mark.parametrize("served", [None, ["default"], ["default", "orders"]])
def test_a_database_that_no_relay_looks_at_is_named_once_in_the_log(
    make_app: Callable[..., Any],
    use_database: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    served: list[str] | None,
) -> None:
    use_database("sqlite")
    use_database("sqlite", alias="orders", name="orders")
    app = make_app(outbox_destinations=DESTINATIONS, outbox_databases=served)
    with transaction.atomic(using="orders"):
        for _ in range(2):
            app.outbox.publish("order.paid", 1, to="events", using="orders")
    found = [each for each in caplog.messages if "unserved_database" in each]
    assert len(found) == (0 if served == ["default", "orders"] else 1)
    assert all("order.paid is stored in database 'orders'" in each for each in found)


@pytest.mark.usefixtures("sqlite")
def test_a_transaction_can_be_required(make_app: Callable[..., Any]) -> None:
    app = make_app(outbox_destinations=DESTINATIONS, outbox_require_transaction=True)
    with pytest.raises(TransactionRequired, match=r"order\.paid"):
        app.outbox.publish("order.paid", to="events")
    assert stored() == []
    with transaction.atomic():
        app.outbox.publish("order.paid", to="events")
    assert len(stored()) == 1


@pytest.mark.usefixtures("sqlite")
def test_an_event_outside_a_transaction_and_one_in_a_hook_are_named_in_the_log(
    app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "celery_outbox"):
        for _ in range(2):
            app.outbox.publish("order.paid", to="events")
        with transaction.atomic():
            transaction.on_commit(lambda: app.outbox.publish("order.sent", to="events"))
    assert [(each.__dict__["event"], each.__dict__["task_name"]) for each in caplog.records] == [
        ("celery_outbox_not_in_transaction", "order.paid"),
        ("celery_outbox_after_commit", "order.sent"),
    ]


# -- later, and many ------------------------------------------------------------------------------


@pytest.mark.parametrize("countdown", [90.5, timedelta(seconds=90.5)], ids=str)
def test_a_countdown_counts_by_the_clock_of_the_database(
    database: str, app: Any, countdown: Any
) -> None:
    app.outbox.publish("order.paid", to=["events", "lake"], countdown=countdown)
    for row in stored():
        assert row.due_at is not None
        assert (row.due_at - row.created_at).total_seconds() == pytest.approx(90.5, abs=0.1)


@pytest.mark.parametrize("eta", [NOW, NOW.isoformat()], ids=type)
def test_an_eta_holds_an_event(database: str, app: Any, eta: Any) -> None:
    app.outbox.publish("order.paid", to="events", eta=eta)
    (row,) = stored()
    assert row.due_at == row.eta == NOW


def test_tasks_and_events_of_a_bulk_are_one_insert_each(database: str, app: Any) -> None:
    add = app.tasks["enqueue.add"]
    with transaction.atomic(), CaptureQueriesContext(connection) as captured:
        with app.outbox_bulk():
            for number in range(20):
                add.delay(number)
                app.outbox.publish("order.paid", number, to=["events", "lake"])
            assert stored() == []
        inserts = [each["sql"] for each in captured if "INSERT INTO" in each["sql"]]
    assert len(inserts) == 2
    assert [row.args for row in stored()] == [str(n) for n in range(20) for _ in range(2)]
    assert CeleryOutbox.objects.count() == 20


@pytest.mark.usefixtures("sqlite")
@pytest.mark.parametrize(
    ("countdown", "delay", "wanted"),
    [(0, 0, ["tasks", "events"]), (3600, 0, ["tasks"]), (0, 3600, ["events"])],
    ids=["both", "tasks", "events"],
)
def test_a_commit_wakes_the_relays_of_what_is_due(
    app: Any, countdown: int, delay: int, wanted: list[str]
) -> None:
    with _woken() as found, transaction.atomic():
        app.tasks["enqueue.add"].apply_async((1,), countdown=delay)
        app.outbox.publish("order.paid", to="events", countdown=countdown)
    assert sorted(found) == sorted(wanted)


@pytest.mark.usefixtures("sqlite")
def test_a_call_that_is_dropped_for_one_that_waits_wakes_its_relay_beside_an_event(
    app: Any,
) -> None:
    add = app.tasks["enqueue.add"]
    add.apply_async((1,), outbox_key="one")
    with _woken() as found, transaction.atomic():
        add.apply_async((1,), outbox_key="one")
        app.outbox.publish("order.paid", to="events")
    assert sorted(found) == ["events", "tasks"]


@contextmanager
def _woken() -> Iterator[list[str]]:
    """Whose relays in this process are woken: those for the app's own broker, or the others."""
    found: list[str] = []
    names = {"default": "tasks", wakeups.for_destination("default", "events"): "events"}
    wakes = {name: partial(found.append, whose) for name, whose in names.items()}
    for name, wake in wakes.items():
        wakeups.register(name, wake)
    try:
        yield found
    finally:
        for name, wake in wakes.items():
            wakeups.unregister(name, wake)


def test_each_row_of_a_bulk_has_its_own_time_key_and_bytes(database: str, app: Any) -> None:
    with app.outbox_bulk():
        app.outbox.publish("order.paid", 1, to="events", eta=NOW)
        app.outbox.publish("order.paid", b"\x00\xff", to="events", key="k", countdown=60)
        app.outbox.publish("order.paid", 3, to="lake")
        app.tasks["enqueue.add"].apply_async((1,), queue="q", outbox_destination="lake")
    rows = stored()
    waits = [row.due_at - row.created_at for row in rows if row.due_at is not None]
    assert rows[0].due_at == NOW
    assert waits[1].total_seconds() == pytest.approx(60, abs=0.1)
    assert all(abs(each) < timedelta(seconds=0.1) for each in waits[2:])
    assert [row.order_key is None for row in rows] == [True, False, True, True]
    assert bytes(rows[1].payload or b"") == b"\x00\xff"
    assert [row.schema_version for row in rows] == [100, 100, 100, 101]


def test_the_keys_of_a_bulk_are_locked_together(database: str, app: Any) -> None:
    with transaction.atomic(), CaptureQueriesContext(connection) as captured, app.outbox_bulk():
        for number in range(20):
            app.outbox.publish("order.paid", number, to=["events", "lake"], key=f"order:{number}")
    assert len(captured) == (1 if database == "sqlite" else 2)


def test_an_event_of_a_bulk_that_raises_is_not_stored(database: str, app: Any) -> None:
    with suppress(Boom), transaction.atomic(), app.outbox_bulk():
        app.outbox.publish("order.paid", to="events")
        raise Boom
    assert stored() == []


def test_one_event_is_one_statement(database: str, app: Any) -> None:
    with transaction.atomic():
        app.outbox.publish("order.paid", to=["events", "lake"])
        with CaptureQueriesContext(connection) as captured:
            app.outbox.publish("order.paid", to=["events", "lake"])
        assert len(captured) == 1


# -- async code -----------------------------------------------------------------------------------


@pytest.mark.postgresql  # threads of asgiref keep the connection that other tests gave them
@pytest.mark.usefixtures("on_postgresql")
def test_apublish_stores_from_async_code(app: Any) -> None:
    async def view() -> Any:
        try:
            return await app.outbox.apublish("order.paid", {"id": 7}, to="events", key="k")
        finally:
            await sync_to_async(connections.close_all)()

    found = asyncio.run(view())
    assert [(row.task_id, row.args) for row in stored()] == [(found, '{"id": 7}')]


@pytest.mark.usefixtures("sqlite")
@pytest.mark.parametrize("connected", [True, False])
def test_publish_inside_a_running_loop_names_apublish(app: Any, connected: bool) -> None:
    if not connected:
        connection.close()

    async def view() -> None:
        app.outbox.publish("order.paid", to="events")

    with pytest.raises(SynchronousOnlyOperation, match="apublish"):
        asyncio.run(view())
    assert stored() == []


# -- data -----------------------------------------------------------------------------------------

PAID = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=timezone.utc)
DATA: dict[str, tuple[Any, Any]] = {
    "nothing": (None, None),
    "dictionary": ({"b": 1, "a": [1, 2.5, True, None, "ä\x00"]}, None),
    "surrogate": ("\ud800", None),
    "list": ([1, 2], None),
    "text": ("paid", None),
    "number": (2**80, None),
    "tuple": ((1, 2), [1, 2]),
    "time": ([PAID, PAID.date()], ["2031-05-06T07:08:09.123Z", "2031-05-06"]),
    "decimal": ({"price": Decimal("10.10")}, {"price": "10.10"}),
    "uuid": (UUID(int=7), str(UUID(int=7))),
    "dataclass": (
        Customer(UUID(int=7), [Address("Ulm", PAID.date())]),
        {"id": str(UUID(int=7)), "addresses": [{"city": "Ulm", "since": "2031-05-06"}]},
    ),
    "pydantic": (
        Order(number=7, lines=[Line(sku="a", price=Decimal("1.50"))], at=PAID),
        {"number": 7, "lines": [{"sku": "a", "price": "1.50"}], "at": f"{PAID:%FT%T.%f}Z"},
    ),
    "nested": (
        {"order": Line(sku="a", price=Decimal(1)), "who": [Address("Ulm", PAID.date())]},
        {"order": {"sku": "a", "price": "1"}, "who": [{"city": "Ulm", "since": "2031-05-06"}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DATA)
def test_data_is_json_that_every_language_reads(database: str, app: Any, name: str) -> None:
    data, wanted = DATA[name]
    app.outbox.publish("order.paid", data, to="events")
    (row,) = stored()
    assert json.loads(row.args) == (data if wanted is None else wanted)
    assert row.payload is None


def test_another_serializer_gets_the_same_data(database: str, app: Any) -> None:
    data, wanted = DATA["pydantic"]
    app.outbox.publish("order.paid", data, to=["packed"])
    (row,) = stored()
    assert options(row)["type"] == "application/x-msgpack"
    assert (
        loads(
            bytes(row.payload or b""),
            "application/x-msgpack",
            "binary",
            accept=["application/x-msgpack"],
        )
        == wanted
    )


@pytest.mark.parametrize("data", [b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")])
def test_bytes_are_sent_as_they_are(database: str, app: Any, data: Any) -> None:
    app.outbox.publish("photo.taken", data, to=["events", "packed"], content_type="image/png")
    app.outbox.publish("photo.taken", data, to="events")
    assert [bytes(row.payload or b"") for row in stored()] == [b"\x00\xff"] * 3
    assert [options(row)["type"] for row in stored()] == [
        "image/png", "image/png", "application/octet-stream",
    ]  # fmt: skip
    assert stored()[0].args == "[2 bytes of image/png]"


def circle() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nan": ({"data": {"x": float("nan")}}, "can't be sent as JSON"),
    "infinity in a model": ({"data": [float("inf")]}, "can't be sent as JSON"),
    "an object": ({"data": {"x": object()}}, "object"),
    "a set": ({"data": {1}}, "can't be sent as JSON"),
    "a class": ({"data": Customer}, "can't be sent as JSON"),
    "bytes inside": ({"data": {"x": b""}}, "or it is bytes"),
    "a circle": ({"data": circle()}, "can't be sent as JSON"),
    "a tuple as key": ({"data": {(1, 2): 3}}, "can't be sent as JSON"),
    "too large for msgpack": ({"data": 2**80, "to": ["lake", "packed"]}, "'packed'"),
    "a surrogate in msgpack": ({"data": "\ud800", "to": ["lake", "packed"]}, "'packed'"),
    "no name": ({"name": ""}, "order.paid"),
    "no text as name": ({"name": None}, "order.paid"),
    "a name in another alphabet": ({"name": "bestellt.über"}, "ASCII"),
    "a name of two lines": ({"name": "a\nb"}, "ASCII"),
    "a long name": ({"name": "x" * 201}, "at most 200"),
    "an empty key": ({"key": ""}, "key"),
    "a number as key": ({"key": 7}, "key"),
    "a key of two lines": ({"key": "a\nb"}, "key"),
    "headers in a list": ({"headers": [("a", "b")]}, "dictionary"),
    "a header without a name": ({"headers": {"": "b"}}, "name of a header"),
    "a number as a header's name": ({"headers": {5: "b"}}, "name of a header"),
    "a header that is no value": ({"headers": {"a": object()}}, "'a'"),
    "a header that is not finite": ({"headers": {"a": [float("nan")]}}, "'a'"),
    "a header that AMQP can't carry": ({"headers": {"a": 2**80}}, "'events'"),
    "a header's name that AMQP can't carry": ({"headers": {"x" * 300: 1}}, "'events'"),
    "an unknown destination": ({"to": ["events", "lakes"]}, "has 'events', 'lake'"),
    "no destination": ({"to": []}, "at least one"),
    "None as destination": ({"to": None}, "at least one"),
    "a number as destination": ({"to": 5}, "5 is not a destination"),
    "a list as destination": ({"to": [["events"]]}, "is not a destination"),
    "bytes as destination": ({"to": b"events"}, "is not a destination"),
    "a routing key that is too long": ({"to": ["lake", "keyed"], "key": "k" * 256}, "'keyed'"),
    "a content type without bytes": ({"content_type": "text/plain"}, "bytes"),
    "no text as content type": ({"data": b"", "content_type": 5}, "image/png"),
    "a long content type": ({"data": b"", "content_type": "x" * 256}, "image/png"),
}


@pytest.mark.usefixtures("sqlite")
@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_sent_is_refused_and_nothing_is_written(app: Any, name: str) -> None:
    given, words = REFUSED[name]
    arguments = {"name": "order.paid", "data": 1, "to": ["lake", "events"], **given}
    with transaction.atomic(), pytest.raises(OutboxError) as error:
        app.outbox.publish(arguments.pop("name"), arguments.pop("data"), **arguments)
    assert words in str(error.value)
    assert stored() == []


@pytest.mark.usefixtures("sqlite")
@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"eta": NOW, "countdown": 5}, TypeError),
        ({"countdown": "soon"}, (TypeError, ValueError)),
        ({"eta": "tomorrow"}, ValueError),
    ],
    ids=str,
)
def test_a_wrong_time_is_the_error_that_it_is_for_a_task(app: Any, given: Any, error: Any) -> None:
    with pytest.raises(error):
        app.outbox.publish("order.paid", to="events", **given)
    assert stored() == []


@pytest.mark.usefixtures("sqlite")
def test_a_destination_that_is_named_twice_gets_one_row(app: Any) -> None:
    app.outbox.publish("order.paid", to=("events", "lake", "events"))
    assert [row.destination for row in stored()] == ["events", "lake"]


@pytest.mark.usefixtures("sqlite")
def test_without_destinations_the_error_says_so(make_app: Callable[..., Any]) -> None:
    with pytest.raises(OutboxError, match="CELERY_OUTBOX_DESTINATIONS has none"):
        make_app().outbox.publish("order.paid", to="events")


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sqlite")
def test_changed_settings_count_from_the_next_event_on(make_app: Callable[..., Any]) -> None:
    app = make_app()
    with override_settings(
        CELERY_OUTBOX_DESTINATIONS=DESTINATIONS, CELERY_OUTBOX_EVENT_SOURCE="/s"
    ):
        app.outbox.publish("order.paid", to="lake")
    with pytest.raises(OutboxError):
        app.outbox.publish("order.paid", to="lake")
    app.conf.outbox_destinations = {"other": {"url": "memory://"}}
    app.outbox.publish("order.paid", to="other")
    assert [(row.destination, options(row)["source"]) for row in stored()] == [
        ("lake", "/s"),
        ("other", "/enqueue"),
    ]


# -- what surrounds an event ----------------------------------------------------------------------


@pytest.mark.usefixtures("sqlite")
def test_people_see_what_the_redactor_returns(make_app: Callable[..., Any]) -> None:
    def redactor(name: str, args: Any, kwargs: Any) -> Any:
        return [{**args[0], "card": "***"}], kwargs

    app = make_app(outbox_destinations=DESTINATIONS, outbox_redactor=redactor)
    app.outbox.publish("order.paid", {"id": 7, "card": "4111"}, to="events")
    app.outbox.publish("order.paid", b"4111", to="events")
    plain, binary = stored()
    assert json.loads(str(plain.redacted_args)) == [{"id": 7, "card": "***"}]
    assert json.loads(plain.args)["card"] == "4111"
    assert binary.redacted_args is None


@pytest.mark.usefixtures("sqlite")
def test_the_signal_names_event_and_destination(app: Any) -> None:
    heard: list[Any] = []

    def hear(task_id: str, task_name: str, destination: str, **_: Any) -> None:
        heard.append((task_id, task_name, destination))

    outbox_message_created.connect(hear)
    try:
        found = app.outbox.publish("order.paid", to=["events", "lake"])
    finally:
        outbox_message_created.disconnect(hear)
    assert heard == [(found, "order.paid", "events"), (found, "order.paid", "lake")]


@pytest.mark.usefixtures("sqlite")
def test_events_are_counted_at_the_commit_by_destination(make_app: Callable[..., Any]) -> None:
    counted: list[Any] = []

    class Sink:
        def increment(self, name: str, value: int, tags: Any) -> None:
            counted.append((name, value, dict(tags)))

        gauge = timing = increment

    app = make_app(outbox_destinations=DESTINATIONS, outbox_metrics=lambda app: Sink())
    with suppress(Boom), transaction.atomic():
        app.outbox.publish("order.paid", to="events")
        raise Boom
    with transaction.atomic():
        for _ in range(2):
            app.outbox.publish("order.paid", to=["events", "lake"])
        app.tasks["enqueue.add"].delay(1)
        assert counted == []
    tags = {"database": "default"}
    assert sorted(counted, key=str) == sorted(
        [
            ("messages.enqueued", 1, {**tags, "task_name": "enqueue.add"}),
            *(
                ("messages.enqueued", 2, {**tags, "destination": to, "task_name": "order.paid"})
                for to in ("events", "lake")
            ),
        ],
        key=str,
    )
