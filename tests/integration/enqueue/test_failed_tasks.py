"""What becomes of a task that fails in a worker; Celery's own tracer runs it, in this process."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from celery.app.trace import trace_task_ret
from django.db import Error, connections, transaction
from django.test import override_settings

from django_integration.models import CeleryOutboxDeadLetter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]

KEPT = "celery_outbox_failed_task_kept"
NOT_KEPT = "celery_outbox_failed_task_not_kept"
counted: list[tuple[str, int, dict[str, str]]] = []


class Sink:
    """Metrics as a list."""

    def increment(self, name: str, value: int, tags: Any) -> None:
        counted.append((name, value, dict(tags)))


def sink(app: Any) -> Sink:
    return Sink()


def broken_redactor(*_: Any) -> Any:
    raise RuntimeError("redactor")


def broken_sink(app: Any) -> Any:
    raise RuntimeError("sink")


class ToOrders:
    """A router that keeps the outbox beside the orders."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "orders"


class Unpicklable(Exception):
    def __init__(self, one: Any, two: Any) -> None:
        super().__init__("odd")
        self.callback = lambda: (one, two)


@pytest.fixture
def make(make_app: Callable[..., Any]) -> Callable[..., Any]:
    """`make(...)`: an app with a task `failed.task` that raises what `app.error` is."""

    def make(**conf: Any) -> Any:
        app = make_app(**{"outbox_keep_failed_tasks": ["failed.*"], "broker": "memory://", **conf})
        app.error = ValueError("no")

        @app.task(name="failed.task", shared=False)
        def task(*args: Any, **kwargs: Any) -> None:
            raise app.error

        return app

    return make


def run(app: Any, name: str = "failed.task", *args: Any, **options: Any) -> str:
    """Run a task as a worker does. Returns its id."""
    producer, result = app.capture((name, args, {}), options)
    (message,) = producer.messages
    request = {
        **message.headers,
        "properties": message.properties,
        "delivery_info": {
            "exchange": message.exchange,
            "routing_key": message.routing_key,
            "priority": message.priority,
        },
    }
    body = message.body, message.content_type, message.content_encoding
    trace_task_ret(name, result.id, request, *body, app=app)
    return str(result.id)


def letters() -> list[CeleryOutboxDeadLetter]:
    return list(CeleryOutboxDeadLetter.objects.order_by("id"))


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        ([], False),
        (["failed.task"], True),
        (["failed.*"], True),
        (["other.*", "*"], True),
        (["failed", "task"], False),
        (["Failed.*"], False),
    ],
)
def test_names_and_patterns(make: Callable[..., Any], names: list[str], kept: bool) -> None:
    run(make(outbox_keep_failed_tasks=names))
    assert len(letters()) == kept


def test_it_is_counted_and_logged(
    make: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    counted.clear()
    caplog.set_level(logging.INFO, "celery_outbox")
    app = make(outbox_metrics=f"{__name__}.sink")
    task_id = run(app)
    (record,) = [each for each in caplog.records if each.__dict__.get("event") == KEPT]
    assert (record.levelno, record.__dict__["task_id"]) == (logging.INFO, task_id)
    tags = {"database": "default", "task_name": "failed.task"}
    assert counted == [("tasks.failed", 1, tags)]


def test_the_routing_is_that_of_the_message(make: Callable[..., Any]) -> None:
    run(make(), queue="special", priority=5, headers={"tenant": "a"})
    (letter,) = letters()
    for part in ('"special"', '"priority": 5', '"tenant": "a"'):
        assert part in letter.options


def test_it_is_committed_whatever_the_caller_does(make: Callable[..., Any]) -> None:
    app = make()
    transaction.set_autocommit(False)
    try:
        run(app)
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    with transaction.atomic():
        run(app)
        with suppress(Error), connections["default"].cursor() as cursor:
            cursor.execute("SELECT broken")
        run(app)
        transaction.set_rollback(True)
    assert len(letters()) == 3


def test_a_lost_connection_is_replaced(make: Callable[..., Any]) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        session = cursor.fetchone()[0]
    other = connections.create_connection("default")
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [session])
    other.close()
    run(make())
    assert len(letters()) == 1


def test_it_is_written_where_the_router_writes_the_outbox(
    make: Callable[..., Any], use_database: Callable[..., None]
) -> None:
    use_database("mysql", alias="orders")
    with override_settings(DATABASE_ROUTERS=[ToOrders()]):
        run(make())
    assert letters() == []
    assert CeleryOutboxDeadLetter.objects.using("orders").get().kind == "task"


def test_only_the_app_of_the_task_keeps_it(make: Callable[..., Any]) -> None:
    other = make()
    run(make())
    assert other.outbox is not None
    assert len(letters()) == 1


def test_a_broken_redactor_hides_the_arguments(make: Callable[..., Any]) -> None:
    run(make(outbox_redactor=f"{__name__}.broken_redactor"), "failed.task", "secret")
    (letter,) = letters()
    assert (letter.redacted_args, letter.args) == ('"[the redactor failed]"', '["secret"]')


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unpicklable(1, 2), "Unpicklable"),
        (KeyError(), "KeyError: "),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "UnicodeDecodeError: "),
    ],
)
def test_any_exception_has_a_reason(
    make: Callable[..., Any], error: Exception, reason: str
) -> None:
    app = make()
    app.error = error
    run(app)
    (letter,) = letters()
    assert reason in letter.failure_reason
    assert letter.traceback is not None
    assert type(error).__name__ in letter.traceback


def test_a_message_of_the_first_protocol(make: Callable[..., Any]) -> None:
    """A worker has decoded it when the task runs; it is kept in the second protocol."""
    request = {"id": "one", "task": "failed.task", "retries": 0, "delivery_info": {}}
    body = ([7], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None})
    trace_task_ret("failed.task", "one", request, body, None, None, app=make())
    (letter,) = letters()
    assert (letter.task_id, letter.args, letter.kwargs, letter.payload) == (
        "one",
        "[7]",
        "{}",
        None,
    )


@contextmanager
def without_column() -> Iterator[None]:
    """As before the migration."""
    rename("kind", "gone")
    try:
        yield
    finally:
        rename("gone", "kind")


def rename(column: str, name: str) -> None:
    """On a cursor of its own: Celery's Django fixup may close the connection after a task."""
    with connections["default"].cursor() as cursor:
        cursor.execute(f"ALTER TABLE celery_outbox_dead_letter RENAME {column} TO {name}")


def test_what_fails_is_logged_and_ends_there(
    make: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with without_column():
        task_id = run(make())
    run(make(outbox_metrics=f"{__name__}.broken_sink"))
    logged = [each for each in caplog.records if each.__dict__.get("event") == NOT_KEPT]
    assert [each.levelno for each in logged] == [logging.ERROR] * 2
    first, second = (each.getMessage() for each in logged)
    assert f"failed.task[{task_id}] failed and is no dead letter: StoreError" in first
    assert "sink" in second
    assert letters() == []
