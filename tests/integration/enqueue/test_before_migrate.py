"""A call before `migrate` names the command; every other error of the database stays what it is."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery.app.trace import build_tracer
from django.db import Error, connection, transaction

from celery_outbox_steps.errors import OutboxError, StoreNotReady
from tests.proj.relaying import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIGRATE = "python manage.py migrate --database=default celery_outbox"
VENDORS = [
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mysql", marks=pytest.mark.mysql),
    "sqlite",
]
RENAMED = {
    "no table celery_outbox;": ("RENAME TO hidden", "RENAME TO celery_outbox"),
    "no column payload;": ("RENAME COLUMN payload TO hidden", "RENAME COLUMN hidden TO payload"),
}


@pytest.fixture(params=VENDORS)
def vendor(request: pytest.FixtureRequest, use_database: Callable[..., None]) -> str:
    use_database(request.param, name="unmigrated")
    return str(request.param)


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


@contextmanager
def renamed(there: str, back: str) -> Iterator[None]:
    table = "celery_outbox" if "COLUMN" in there else "hidden"
    execute(f"ALTER TABLE celery_outbox {there}")
    try:
        yield
    finally:
        execute(f"ALTER TABLE {table} {back}")


CALLS: dict[str, Callable[[Any], Any]] = {
    "a call": lambda add: add.delay(1),
    "with a key": lambda add: add.apply_async((1,), outbox_key="it"),
}


@pytest.mark.parametrize("block", [transaction.atomic, nullcontext], ids=["atomic", "alone"])
@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@pytest.mark.parametrize("missing", RENAMED)
def test_the_error_says_what_is_missing_and_what_to_run(
    missing: str,
    call: Callable[[Any], Any],
    block: Callable[[], AbstractContextManager[Any]],
    vendor: str,
    add: Any,
) -> None:
    with renamed(*RENAMED[missing]), pytest.raises(StoreNotReady) as raised, block():
        call(add)
    assert missing in str(raised.value)
    assert MIGRATE in str(raised.value)
    assert isinstance(raised.value.__cause__, Error)
    add.delay(2)
    assert [row.args for row in rows()] == ["[2]"]


PARTNER = {"partner": {"url": "amqp://guest@127.0.0.1:1//", "queue": "celery"}}
DELIVERIES: dict[str, Callable[[Any], Any]] = {
    "an event": lambda app: app.outbox.publish("order.paid", to="partner"),
    "an event with a key": lambda app: app.outbox.publish("order.paid", to="partner", key="k"),
    "a task": lambda app: app.send_task("partner.charge", outbox_destination="partner"),
}


@pytest.mark.parametrize("store", DELIVERIES.values(), ids=list(DELIVERIES))
def test_without_the_table_for_destinations_only_they_are_refused(
    store: Callable[[Any], Any], vendor: str, make_app: Callable[..., Any]
) -> None:
    app = make_app(outbox_destinations=PARTNER)
    execute("ALTER TABLE celery_outbox_delivery RENAME TO hidden")
    try:
        with pytest.raises(StoreNotReady, match=f"no table celery_outbox_delivery; run: {MIGRATE}"):
            store(app)
        app.tasks["enqueue.add"].delay(2)
    finally:
        execute("ALTER TABLE hidden RENAME TO celery_outbox_delivery")
    assert [row.args for row in rows()] == ["[2]"]


@pytest.mark.mysql
def test_locks_that_are_missing_are_named(
    use_database: Callable[..., None], make_app: Callable[..., Any]
) -> None:
    use_database("mysql", name="unmigrated")
    app = make_app(outbox_destinations=PARTNER)
    problem = "no table celery_outbox_order_lock with a row for each id from 0 to 16383"
    execute("RENAME TABLE celery_outbox_order_lock TO hidden")
    try:
        with pytest.raises(StoreNotReady, match=problem):
            DELIVERIES["an event with a key"](app)
        execute("CREATE TABLE celery_outbox_order_lock LIKE hidden")
        with pytest.raises(StoreNotReady, match=problem):
            DELIVERIES["an event with a key"](app)
        DELIVERIES["an event"](app)
        execute("DROP TABLE celery_outbox_order_lock")
    finally:
        execute("RENAME TABLE hidden TO celery_outbox_order_lock")
    DELIVERIES["an event with a key"](app)


def test_another_error_of_the_database_is_djangos_own(vendor: str, add: Any) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(Error) as raised:
            add.delay(1)
    assert not isinstance(raised.value, OutboxError)


def test_a_retry_goes_to_the_broker_though_the_table_to_hold_it_is_missing(
    vendor: str, make_app: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(broker="memory://", task_default_queue=f"unmigrated-{uuid4().hex[:8]}")

    @app.task(name="enqueue.again", bind=True, shared=False)
    def again(self: Any) -> None:
        raise self.retry(countdown=600)

    app.finalize()
    tracer = build_tracer("enqueue.again", app.tasks["enqueue.again"], app=app)
    request = {"id": "the-id", "delivery_info": {}, "is_eager": False, "retries": 0}
    with renamed(*RENAMED["no table celery_outbox;"]):
        tracer("the-id", (), {}, request)
    with app.connection_for_write() as broker:
        assert broker.SimpleQueue(app.conf.task_default_queue).qsize() == 1
    assert "celery_outbox_retry_not_held" in caplog.text
