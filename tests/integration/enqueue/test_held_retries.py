"""A retry with long to wait is held in the table; one is never lost while either service is up."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from celery import states
from celery.app.trace import build_tracer
from celery.exceptions import Reject
from django.db import connections, transaction
from django.db.backends.signals import connection_created

from django_integration import OutboxCelery
from tests.proj.relaying import messages, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VENDORS = ("postgresql", "mysql", "sqlite")
NOWHERE = "amqp://guest@127.0.0.1:1//"


@pytest.fixture(params=VENDORS)
def database(request: pytest.FixtureRequest, use_database: Callable[..., None]) -> str:
    use_database(request.param)
    return str(request.param)


@pytest.fixture
def make() -> Callable[..., Any]:
    def app(broker: str = "memory://", **conf: Any) -> Any:
        made = OutboxCelery("held", broker=broker, backend="cache+memory://", set_as_current=False)
        options = {"max_retries": 0}
        made.conf.update(task_publish_retry=False, broker_transport_options=options)
        made.conf.update(task_default_queue=f"held-{uuid4().hex[:8]}", **conf)

        @made.task(name="held.again", bind=True, shared=False, max_retries=None)
        def again(self: Any, countdown: float, *, atomic: bool = False) -> None:
            if not atomic:
                raise self.retry(countdown=countdown)
            with transaction.atomic():
                made.send_task("rolled.back")
                raise self.retry(countdown=countdown)

        return made

    return app


def trace(app: Any, *args: Any, headers: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    """Run the task as a worker does; what the tracer returns."""
    app.finalize()
    task = app.tasks["held.again"]
    tracer = build_tracer(task.name, task, app=app)
    request = {"id": "the-id", "delivery_info": {}, "is_eager": False, "retries": 0}
    return tracer("the-id", args, kwargs, {**request, **(headers or {})})


def at_broker(app: Any) -> int:
    with app.connection_for_write() as broker:
        return int(broker.SimpleQueue(app.conf.task_default_queue).qsize())


@contextmanager
def connections_made() -> Iterator[list[Any]]:
    """Besides the caller's own, which Celery may close between two tasks."""
    made: list[Any] = []

    def note(connection: Any, **_: Any) -> None:
        if connection is not connections["default"]:
            made.append(connection)

    connection_created.connect(note)
    yield made
    connection_created.disconnect(note)


@contextmanager
def database_away() -> Iterator[None]:
    connections["default"].close()
    with patch.dict(connections["default"].settings_dict, PORT="1"):
        yield


def test_beyond_the_setting_it_waits_in_the_table(database: str, make: Callable[..., Any]) -> None:
    app = make()
    assert trace(app, 61).info.state == states.RETRY
    (row,) = rows()
    assert (row.task_id, at_broker(app)) == ("the-id", 0)
    assert (row.due_at - row.created_at).total_seconds() == pytest.approx(61, abs=0.5)
    (message,) = messages(app.now())
    assert (message.headers["eta"], message.headers["retries"]) == (None, 1)


@pytest.mark.parametrize(("hold_retries", "countdown"), [(60, 60), (None, 10_000), (600, 61)])
def test_up_to_the_setting_it_goes_to_the_broker(
    hold_retries: Any, countdown: float, make: Callable[..., Any], use_database: Any
) -> None:
    use_database("postgresql")
    app = make(outbox_hold_retries=hold_retries)
    trace(app, countdown)
    assert (rows(), at_broker(app)) == ([], 1)


@pytest.mark.parametrize("vendor", ["postgresql", "mysql"])
def test_inside_of_a_transaction_it_is_stored_and_the_rest_is_rolled_back(
    vendor: str, make: Callable[..., Any], use_database: Callable[..., None]
) -> None:
    use_database(vendor)
    app = make()
    trace(app, 3600, atomic=True)
    assert [row.task_name for row in rows()] == ["held.again"]
    assert at_broker(app) == 0


def test_a_database_that_can_not_store_it_beside_the_transaction_leaves_it_to_the_broker(
    make: Callable[..., Any], use_database: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite has one writer: the task's own transaction."""
    use_database("sqlite")
    app = make()
    with patch.dict(connections["default"].settings_dict, OPTIONS={"timeout": 0.1}):
        trace(app, 3600, atomic=True)
    assert (rows(), at_broker(app)) == ([], 1)
    assert "celery_outbox_retry_not_held" in caplog.text


def test_a_connection_is_opened_only_beside_a_transaction(
    make: Callable[..., Any], use_database: Callable[..., None]
) -> None:
    use_database("postgresql")
    app = make()
    connections["default"].ensure_connection()
    with connections_made() as made:
        trace(app, 3600)
        assert made == []
        trace(app, 3600, atomic=True)
        assert len(made) == 1
        assert made[0].connection is None  # and closed
    assert len(rows()) == 2


def test_a_lost_connection_is_replaced(
    make: Callable[..., Any], use_database: Callable[..., None]
) -> None:
    use_database("postgresql")
    app = make()
    connections["default"].ensure_connection()
    connections["default"].connection.close()
    trace(app, 3600)
    assert (len(rows()), at_broker(app)) == (1, 0)


@pytest.mark.parametrize("vendor", ["postgresql", "mysql"])
def test_with_the_database_away_it_goes_to_the_broker_with_its_eta(
    vendor: str, make: Callable[..., Any], use_database: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    use_database(vendor)
    app = make()
    with database_away():
        assert trace(app, 3600).info.state == states.RETRY
    assert (rows(), at_broker(app)) == ([], 1)
    assert "celery_outbox_retry_not_held" in caplog.text


@pytest.mark.parametrize("countdown", [5, 3600])
def test_with_the_broker_away_it_waits_in_the_table(
    database: str, countdown: float, make: Callable[..., Any]
) -> None:
    app = make(NOWHERE)
    assert trace(app, countdown).info.state == states.RETRY
    (row,) = rows()
    assert (row.due_at - row.created_at).total_seconds() == pytest.approx(countdown, abs=1)


@pytest.mark.parametrize("countdown", [5, 3600])
def test_with_both_away_it_is_celerys_own_error(
    countdown: float, make: Callable[..., Any], use_database: Callable[..., None]
) -> None:
    use_database("postgresql")
    app = make(NOWHERE)
    task = app.tasks["held.again"]
    task.push_request(id="the-id", called_directly=False, delivery_info={}, args=(1,), kwargs={})
    with database_away(), pytest.raises(Reject) as error:
        task.retry(countdown=countdown)
    task.pop_request()
    assert type(error.value.reason).__module__.startswith("kombu")
    assert rows() == []


def test_the_time_of_the_last_hold_is_not_repeated(
    make: Callable[..., Any], use_database: Callable[..., None]
) -> None:
    use_database("postgresql")
    app = make()
    held_before = {"outbox_eta": "2020-01-01T00:00:00+00:00", "own": "kept"}
    trace(app, 3600, headers={**held_before, "headers": held_before})
    (message,) = messages(app.now())
    assert message.headers["own"] == "kept"
    assert not message.headers["outbox_eta"].startswith("2020")


def test_backoff_of_autoretry_is_held_too(
    make: Callable[..., Any], use_database: Callable[..., None]
) -> None:
    use_database("postgresql")
    app = make()

    @app.task(
        name="held.auto", shared=False, autoretry_for=(ZeroDivisionError,), retry_backoff=3600,
        retry_backoff_max=86_400, retry_jitter=False,
    )  # fmt: skip
    @transaction.atomic
    def auto() -> None:
        app.send_task("rolled.back")
        1 / 0  # noqa: B018

    app.finalize()
    build_tracer(auto.name, auto, app=app)(
        "the-id", (), {}, {"id": "the-id", "delivery_info": {}, "is_eager": False, "retries": 0}
    )
    (row,) = rows()
    assert (row.due_at - row.created_at).total_seconds() == pytest.approx(3600, abs=1)


def test_a_retry_of_an_excluded_task_goes_to_the_broker(
    make: Callable[..., Any], use_database: Callable[..., None]
) -> None:
    use_database("postgresql")
    app = make(outbox_exclude_tasks=["held.*"])
    trace(app, 3600)
    assert (rows(), at_broker(app)) == ([], 1)


def test_a_held_retry_can_be_revoked(
    make: Callable[..., Any], use_database: Callable[..., None]
) -> None:
    use_database("postgresql")
    app = make()
    trace(app, 3600)
    app.AsyncResult("the-id").revoke()
    assert rows() == []
