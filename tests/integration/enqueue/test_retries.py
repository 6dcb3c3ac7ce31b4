"""A retry or replacement is never lost, whatever becomes of the transaction, and sent only once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Task, chain, group, shared_task, signals
from celery.app.trace import build_tracer
from celery.contrib.django.task import DjangoTask
from django.db import DatabaseError, connection, transaction

from django_integration import OutboxCelery
from tests.harness.databases import installed
from tests.helpers import wait_for
from tests.proj.relaying import publish_all, rows
from tests.proj.workers import relay_until, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.databases import Databases

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]


class PlainTask(Task):
    """A base class that knows nothing of the outbox or of Django."""


class StubbornTask(Task):
    """A base class with a `retry` of its own."""

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        return super().retry(*args, **kwargs)


BASES = {"the default": None, "Task": PlainTask, "DjangoTask": DjangoTask, "own": StubbornTask}
NOW = {"countdown": 0, "max_retries": 3}


@shared_task(name="retries.shared", base=PlainTask, bind=True)
def shared_retry(self: Any, journal_key: str) -> str:
    with transaction.atomic():
        JOURNALS[journal_key].append(self.request.retries)
        if self.request.retries == 0:
            raise self.retry(**NOW)
    return "done"


JOURNALS: dict[str, list[Any]] = {}


@pytest.fixture
def app() -> Any:
    app = OutboxCelery(
        "retries", broker="memory://", backend="cache+memory://", set_as_current=False
    )
    app.conf.task_default_queue = f"retries-{uuid4().hex[:8]}"
    return app


@pytest.fixture
def sent() -> Iterator[list[str]]:
    """The name of every task that Celery built a message for."""
    names: list[str] = []

    def receive(sender: str, **_: Any) -> None:
        names.append(sender)

    signals.after_task_publish.connect(receive)
    yield names
    signals.after_task_publish.disconnect(receive)


def run(app: Any, task: Any, *args: Any) -> Any:
    """The task's result, after as many retries as it wants."""
    with running(app):
        result = task.delay(*args)
        relay_until(app, result.ready)
    return result.get(timeout=1)


@pytest.mark.parametrize("base", BASES)
def test_a_retry_inside_of_atomic_is_sent_once(app: Any, base: str, sent: list[str]) -> None:
    runs = []

    @app.task(name="retries.it", bind=True, shared=False, **_base(base))
    def it(self: Any) -> str:
        with transaction.atomic():
            runs.append(self.request.retries)
            if self.request.retries < 2:
                raise self.retry(**NOW)
        return "done"

    assert run(app, it) == "done"
    assert runs == [0, 1, 2]
    assert sent == ["retries.it"] * 3


def test_a_retry_of_a_shared_task_with_a_base_of_its_own_is_sent_once(
    app: Any, sent: list[str]
) -> None:
    JOURNALS["shared"] = runs = []
    assert run(app, app.tasks["retries.shared"], "shared") == "done"
    assert runs == [0, 1]
    assert sent == ["retries.shared"] * 2


def test_autoretry_for(app: Any, sent: list[str]) -> None:
    runs = []

    @app.task(
        name="retries.auto", bind=True, shared=False, autoretry_for=(ValueError,),
        retry_backoff=False, default_retry_delay=0,
    )  # fmt: skip
    @transaction.atomic
    def auto(self: Any) -> str:
        runs.append(self.request.retries)
        if self.request.retries == 0:
            raise ValueError
        return "done"

    assert run(app, auto) == "done"
    assert (runs, sent) == ([0, 1], ["retries.auto"] * 2)


def test_a_retry_in_a_broken_atomic_block(app: Any, sent: list[str]) -> None:
    runs = []

    @app.task(name="retries.broken", bind=True, shared=False)
    def broken(self: Any) -> str:
        runs.append(self.request.retries)
        with transaction.atomic():
            try:
                if self.request.retries == 0:
                    connection.cursor().execute("SELECT 1 FROM no_such_table")
            except DatabaseError as exc:
                raise self.retry(exc=exc, **NOW) from exc
        return "done"

    assert run(app, broken) == "done"
    assert (runs, sent) == ([0, 1], ["retries.broken"] * 2)


def test_a_class_based_task_retries(app: Any, sent: list[str]) -> None:
    class ClassBased(app.Task):  # type: ignore[misc, name-defined]
        name = "retries.class"

        def run(self) -> str:
            with transaction.atomic():
                if self.request.retries == 0:
                    raise self.retry(**NOW)
            return "done"

    assert run(app, app.register_task(ClassBased())) == "done"
    assert sent == ["retries.class"] * 2


REPLACEMENTS: dict[str, Callable[[Any], Any]] = {
    "task": lambda add: add.si(1, 2),
    "chain": lambda add: chain(add.si(1, 1), add.s(1)),
    "group": lambda add: group(add.si(1, 2), add.si(1, 2)),
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("kind", REPLACEMENTS)
def test_a_replacement_inside_of_atomic_arrives_once(app: Any, kind: str, base: str) -> None:
    runs: list[int] = []

    @app.task(name="retries.add", shared=False)
    def add(x: int, y: int) -> int:
        runs.append(x + y)
        return x + y

    @app.task(name="retries.replaced", bind=True, shared=False, **_base(base))
    def replaced(self: Any) -> Any:
        with transaction.atomic():
            return self.replace(REPLACEMENTS[kind](add))

    with running(app):
        result = replaced.delay()
        relay_until(app, result.ready)
        value = result.get(timeout=5, disable_sync_subtasks=False)
    assert value == ([3, 3] if kind == "group" else 3)
    assert runs == {"task": [3], "chain": [2, 3], "group": [3, 3]}[kind]


def test_an_eager_retry_runs_with_the_outbox_on(app: Any) -> None:
    app.conf.task_always_eager = True

    @app.task(name="retries.eager", bind=True, shared=False)
    def eager(self: Any) -> str:
        if self.request.retries == 0:
            raise self.retry(**NOW)
        app.send_task("called.by.the.retry")
        return "done"

    assert eager.delay().get() == "done"
    assert [row.task_name for row in rows()] == ["called.by.the.retry"]


def test_calls_of_receivers_during_a_retry_are_stored(app: Any) -> None:
    def receive(sender: str, **_: Any) -> None:
        if sender == "retries.loud":
            app.send_task("called.by.a.receiver")

    @app.task(name="retries.loud", bind=True, shared=False)
    def loud(self: Any) -> str:
        if self.request.retries == 0:
            signals.before_task_publish.connect(receive)
            raise self.retry(**NOW)
        return "done"

    with running(app):
        try:
            result = loud.delay()
            publish_all(app, app.now())
            wait_for(result.ready)
        finally:
            signals.before_task_publish.disconnect(receive)
    assert [row.task_name for row in rows()] == ["called.by.a.receiver"]


@pytest.mark.parametrize("broker", ["amqp://guest@127.0.0.1:1//", "redis://127.0.0.1:1/0"])
def test_a_retry_while_the_broker_is_away_is_stored_apart_from_the_transaction(broker: str) -> None:
    app = OutboxCelery("away", broker=broker, set_as_current=False)
    app.conf.update(task_publish_retry=False, broker_transport_options={"max_retries": 0})

    @app.task(name="retries.away", bind=True, shared=False)
    def away(self: Any) -> None:
        with transaction.atomic():
            app.send_task("rolled.back")
            raise self.retry(countdown=60)

    trace(app, away, "the-id")
    (row,) = rows()
    assert (row.task_name, row.task_id, '"retries": 1' in row.options) == (
        "retries.away", "the-id", True,
    )  # fmt: skip


def test_it_is_stored_where_the_project_has_no_autocommit(databases: Databases) -> None:
    app = OutboxCelery("away", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update(task_publish_retry=False, broker_transport_options={"max_retries": 0})

    @app.task(name="retries.by.hand", bind=True, shared=False)
    def by_hand(self: Any) -> None:
        raise self.retry(countdown=60)

    settings = {**databases.get("postgresql"), "AUTOCOMMIT": False}
    with installed("default", settings):
        trace(app, by_hand, "some-id")
    assert [row.task_name for row in rows()] == ["retries.by.hand"]


def test_other_calls_of_the_same_transaction_are_still_rolled_back(app: Any) -> None:
    @app.task(name="retries.other", bind=True, shared=False)
    def other(self: Any) -> None:
        with transaction.atomic():
            app.send_task("rolled.back")
            raise self.retry(countdown=60)

    trace(app, other, "some-id")
    assert rows() == []
    with app.connection_for_write() as broker:
        assert broker.SimpleQueue(app.conf.task_default_queue).qsize() == 1


def trace(app: Any, task: Any, task_id: str) -> Any:
    """Run the task as a worker does."""
    app.finalize()
    tracer = build_tracer(task.name, task, app=app)
    request = {"id": task_id, "delivery_info": {}, "is_eager": False, "retries": 0}
    return tracer(task_id, (), {}, request)


def _base(name: str) -> dict[str, Any]:
    return {"base": BASES[name]} if BASES[name] else {}
