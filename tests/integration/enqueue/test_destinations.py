"""`outbox_destination`: a call becomes a row for another installation's broker, or an error."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from asgiref.sync import sync_to_async
from celery import chain, chord, group
from celery.app.trace import build_tracer
from celery.contrib.testing.app import setup_default_app
from django.db import OperationalError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext, override_settings

from celery_outbox_steps.envelope import FOR_DESTINATION, SCHEMA_VERSION
from celery_outbox_steps.errors import ConfigurationError, OutboxError
from tests.proj.relaying import deliveries, rows

if TYPE_CHECKING:
    from collections.abc import Callable

VENDORS = [
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mysql", marks=pytest.mark.mysql),
    "sqlite",
]
PARTNER = {"url": "redis://user:hunter2@127.0.0.1:1", "queue": "partner"}
DESTINATIONS = {
    "partner": PARTNER,
    "bare": {"url": "amqp://guest:hunter2@127.0.0.1:1//"},
    "missing": {"url": "nosuch://u:hunter2@127.0.0.1"},
}


class Boom(Exception):
    pass


@pytest.fixture(params=VENDORS)
def database(request: pytest.FixtureRequest, use_database: Callable[..., None]) -> str:
    use_database(request.param)
    return str(request.param)


@pytest.fixture
def sqlite(use_database: Callable[..., None]) -> None:
    use_database("sqlite")


@pytest.fixture
def app(make_app: Callable[..., Any]) -> Any:
    return make_app(outbox_destinations=DESTINATIONS)


def queues() -> list[tuple[str, str]]:
    """Where the stored messages go: destination and routing key."""
    return [(row.destination, json.loads(row.options)["routing_key"]) for row in deliveries()]


def test_a_call_is_one_row_for_the_destination(database: str, app: Any, add: Any) -> None:
    with transaction.atomic():
        with CaptureQueriesContext(connection) as captured:
            result = add.apply_async((1,), {"y": 2}, outbox_destination="partner")
        assert len(captured) <= 1 + (database == "sqlite")
    (row,) = deliveries()
    assert (row.task_id, row.task_name, row.args, row.kwargs) == (
        result.id, "enqueue.add", "[1]", '{"y": 2}',
    )  # fmt: skip
    assert (row.destination, row.order_key) == ("partner", None)
    assert row.schema_version == FOR_DESTINATION + SCHEMA_VERSION
    assert "outbox_destination" not in row.options
    assert rows() == []


def test_a_rollback_takes_the_row(database: str, app: Any, add: Any) -> None:
    with suppress(Boom), transaction.atomic():
        add.apply_async((1,), outbox_destination="partner")
        raise Boom
    assert deliveries() == []


def test_a_group_is_one_insert(database: str, app: Any, add: Any) -> None:
    with transaction.atomic(), CaptureQueriesContext(connection) as captured:
        group(add.s(number) for number in range(50)).apply_async(outbox_destination="partner")
    assert sum("INSERT INTO" in each["sql"] for each in captured) == 1
    assert len(deliveries()) == 50


def test_a_call_for_later_waits_in_the_table(database: str, app: Any, add: Any) -> None:
    add.apply_async((1,), countdown=60, outbox_destination="partner")
    (row,) = deliveries()
    assert (row.due_at - row.created_at).total_seconds() == pytest.approx(60, abs=0.1)
    assert row.eta is not None
    assert json.loads(row.options)["headers"]["eta"] is None


def test_a_call_that_waits_can_be_taken_back(database: str, app: Any, add: Any) -> None:
    result = add.apply_async((1,), outbox_destination="partner")
    with suppress(Boom), transaction.atomic():
        result.revoke()
        assert deliveries() == []
        raise Boom
    assert len(deliveries()) == 1
    result.revoke()  # and not broadcast: there is no broker
    assert deliveries() == []


def test_a_call_that_waits_can_get_another_time(database: str, app: Any, add: Any) -> None:
    result = add.apply_async((1,), outbox_destination="partner")
    assert app.outbox.reschedule(result.id, countdown=600)
    assert deliveries()[0].eta is not None
    assert app.outbox.send_now(result.id)
    (row,) = deliveries()
    assert row.eta is None or row.eta <= row.due_at


@pytest.mark.postgresql  # threads of asgiref keep the connection that other tests gave them
def test_a_call_from_async_code(add: Any, use_database: Callable[..., None]) -> None:
    use_database("postgresql")

    async def view() -> None:
        await add.aapply_async((1,), outbox_destination="partner")
        await sync_to_async(connections.close_all)()

    asyncio.run(view())
    assert len(deliveries()) == 1


@pytest.mark.usefixtures("sqlite")
class TestWhereTo:
    def test_the_queue_of_the_destination_not_that_of_the_task(self, app: Any) -> None:
        @app.task(name="enqueue.billed", queue="billing", shared=False)
        def billed() -> None: ...

        app.conf.task_routes = {"enqueue.*": {"queue": "ours"}}
        billed.apply_async(outbox_destination="partner")
        app.tasks["enqueue.add"].apply_async((1,), outbox_destination="partner")
        assert queues() == [("partner", "partner")] * 2

    def test_the_queue_that_the_call_names(self, add: Any) -> None:
        add.apply_async((1,), queue="fast", outbox_destination="partner")
        add.apply_async((1,), exchange="x", routing_key="k", outbox_destination="bare")
        assert queues() == [("partner", "fast"), ("bare", "k")]

    def test_without_any_queue_the_error_says_what_to_name(self, add: Any) -> None:
        with pytest.raises(OutboxError, match=r'apply_async\(queue="celery"\).*\'bare\''):
            add.apply_async((1,), outbox_destination="bare")
        assert deliveries() == []

    def test_the_queue_of_a_task_serves_where_the_destination_has_none(self, app: Any) -> None:
        @app.task(name="enqueue.billed", queue="billing", shared=False)
        def billed() -> None: ...

        billed.apply_async(outbox_destination="bare")
        assert queues() == [("bare", "billing")]

    def test_none_is_the_apps_own_broker(self, add: Any) -> None:
        add.apply_async((1,), outbox_destination=None)
        assert deliveries() == []
        assert len(rows()) == 1

    def test_an_unknown_destination_names_those_that_exist(self, add: Any) -> None:
        for wrong in ("partners", 5, ["partner"]):
            with pytest.raises(OutboxError, match=r"has 'partner', 'bare'"):
                add.apply_async((1,), outbox_destination=wrong)
        assert rows() == deliveries() == []

    def test_a_transport_that_is_missing_is_named_without_the_password(self, add: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"\['missing'\]") as error:
            add.apply_async((1,), queue="q", outbox_destination="missing")
        assert "hunter2" not in str(error.value)

    def test_a_name_without_a_task_here(self, app: Any) -> None:
        app.send_task("partner.charge", (1,), outbox_destination="partner")
        app.signature("partner.charge", (1,)).apply_async(outbox_destination="partner")
        assert [row.task_name for row in deliveries()] == ["partner.charge"] * 2

    def test_a_task_that_bypasses_the_outbox_is_stored_for_a_destination(
        self, make_app: Callable[..., Any]
    ) -> None:
        app = make_app(outbox_destinations=DESTINATIONS, outbox_exclude_tasks=["enqueue.*"])
        app.tasks["enqueue.add"].apply_async((1,), outbox_destination="partner")
        assert len(deliveries()) == 1

    def test_a_task_runs_at_once_if_all_tasks_do(self, make_app: Callable[..., Any]) -> None:
        app = make_app(outbox_destinations=DESTINATIONS, task_always_eager=True)
        result = app.tasks["enqueue.add"].apply_async((1, 2), outbox_destination="partner")
        assert result.get() == 3
        assert deliveries() == []

    def test_changed_settings_count_from_the_next_call_on(self, app: Any, add: Any) -> None:
        add.apply_async((1,), outbox_destination="partner")
        app.conf.outbox_destinations = {"partner": {**PARTNER, "queue": "other"}}
        add.apply_async((1,), outbox_destination="partner")
        assert queues() == [("partner", "partner"), ("partner", "other")]

    def test_overridden_settings_count_until_they_end(self, make_app: Callable[..., Any]) -> None:
        add = make_app().tasks["enqueue.add"]
        with override_settings(CELERY_OUTBOX_DESTINATIONS=DESTINATIONS):
            add.apply_async((1,), outbox_destination="partner")
        with pytest.raises(OutboxError, match="has none"):
            add.apply_async((1,), outbox_destination="partner")

    def test_no_password_in_what_celery_shows_of_the_configuration(self, app: Any) -> None:
        report = app.bugreport()
        shown = f"{report} {app.conf.table(with_defaults=True)} {app.conf.humanize()}"
        assert "redis://user:********@" in shown
        assert "hunter2" not in shown


@pytest.mark.usefixtures("sqlite")
class TestCanvas:
    def test_each_task_of_a_group_goes_where_it_says(self, add: Any) -> None:
        group(add.s(1).set(outbox_destination="partner"), add.s(2)).apply_async()
        assert ([row.args for row in deliveries()], [row.args for row in rows()]) == (
            ["[1]"],
            ["[2]"],
        )

    def test_the_head_of_a_chain_takes_the_rest_along(self, add: Any) -> None:
        chain(add.s(1), add.s(2), add.s(3)).apply_async(outbox_destination="partner")
        (row,) = deliveries()
        assert row.args == "[1]"
        embedded = json.loads(json.loads(row.options)["embed"])["chain"]
        assert [each["args"] for each in embedded] == [[3], [2]]
        assert "outbox_destination" not in row.options

    def test_a_later_task_of_a_chain_is_sent_there_by_the_worker_that_runs_the_one_before(
        self, app: Any, add: Any
    ) -> None:
        chain(add.s(1), add.s(2).set(outbox_destination="partner")).apply_async()
        assert deliveries() == []
        self.run(app, rows()[0])
        (row,) = deliveries()
        assert row.args == "[1, 2]"

    @pytest.mark.parametrize("how", ["chain", "a group in a chain", "link", "link_error"])
    def test_what_follows_a_task_over_there_can_not_be_sent_from_here(
        self, make_app: Callable[..., Any], how: str
    ) -> None:
        app = make_app(outbox_destinations=DESTINATIONS, backend="cache+memory://")
        add = app.tasks["enqueue.add"]
        there = add.s(2).set(outbox_destination="partner")
        calls = {
            "chain": chain(add.s(1).set(outbox_destination="partner"), there),
            "a group in a chain": chain(
                add.s(1).set(outbox_destination="partner"), group(there, add.s(3)), add.s(4)
            ),
            "link": add.s(1).set(outbox_destination="partner", link=there),
            "link_error": add.s(1).set(outbox_destination="partner", link_error=there),
        }
        with pytest.raises(OutboxError, match="sent by the worker that runs the task before it"):
            calls[how].apply_async()
        assert rows() == deliveries() == []

    def test_a_chord_is_refused(self, make_app: Callable[..., Any]) -> None:
        app = make_app(outbox_destinations=DESTINATIONS, backend="cache+memory://")
        add = app.tasks["enqueue.add"]
        with pytest.raises(OutboxError, match="header"):
            chord([add.s(1), add.s(2)], add.s()).apply_async(outbox_destination="partner")
        assert rows() == deliveries() == []

    def test_the_body_of_a_chord_may_go_there(self, make_app: Callable[..., Any]) -> None:
        app = make_app(outbox_destinations=DESTINATIONS, backend="cache+memory://")
        add = app.tasks["enqueue.add"]
        chord([add.s(1), add.s(2)])(app.tasks["enqueue.add"].s(3).set(outbox_destination="partner"))
        assert len(rows()) == 2
        assert '"outbox_destination": "partner"' in json.loads(rows()[0].options)["embed"]

    @staticmethod
    def run(app: Any, row: Any) -> None:
        """Run a stored task as a worker does."""
        options = json.loads(row.options)
        embed = json.loads(options.get("embed", "{}"))
        request = {**options["headers"], **embed, "is_eager": False, "args": json.loads(row.args)}
        with setup_default_app(app):
            tracer = build_tracer(row.task_name, app.tasks[row.task_name], app=app)
            tracer(row.task_id, json.loads(row.args), json.loads(row.kwargs), request)


@pytest.mark.usefixtures("sqlite")
class TestInAWorker:
    @pytest.fixture
    def app(self, make_app: Callable[..., Any]) -> Any:
        return make_app(
            outbox_destinations=DESTINATIONS, broker="memory://", backend="cache+memory://"
        )

    def run(self, app: Any, body: Callable[[Any], Any]) -> Any:
        """What becomes of a task with this body."""

        @app.task(bind=True, name="enqueue.tried", shared=False)
        def tried(self: Any) -> Any:
            return body(self)

        with setup_default_app(app):
            tracer = build_tracer(tried.name, tried, app=app, eager=False)
            return tracer("an-id", (), {}, {"id": "an-id", "task": tried.name, "retries": 0}).retval

    def test_a_task_calls_one_over_there(self, app: Any) -> None:
        add = app.tasks["enqueue.add"]
        self.run(app, lambda task: add.apply_async((1,), outbox_destination="partner").id)
        (row,) = deliveries()
        assert json.loads(row.options)["headers"]["parent_id"] == "an-id"

    def test_a_retry_stays_with_the_broker_of_its_worker(self, app: Any) -> None:
        self.run(app, lambda task: task.retry(countdown=3600))
        assert deliveries() == []
        assert len(rows()) == 1

    def test_a_retry_and_a_replacement_can_not_go_there(self, app: Any) -> None:
        add = app.tasks["enqueue.add"]
        bodies = [
            lambda task: task.retry(countdown=3600, outbox_destination="partner"),
            lambda task: task.replace(add.s(1).set(outbox_destination="partner")),
        ]
        for body in bodies:
            assert "A retry or replacement can't have" in str(self.run(app, body))
        assert rows() == deliveries() == []

    def test_a_call_that_can_not_be_stored_does_not_go_to_the_broker_of_the_worker(
        self, app: Any
    ) -> None:
        add = app.tasks["enqueue.add"]
        connection.close()
        with patch.object(connection, "connect", side_effect=OperationalError("away")):
            found = self.run(app, lambda task: add.apply_async((1,), outbox_destination="partner"))
        assert "away" in str(found.exception)


@pytest.mark.usefixtures("sqlite")
def test_a_key_is_not_for_another_installation(app: Any, add: Any) -> None:
    with pytest.raises(OutboxError, match="can't have an outbox_key"):
        add.apply_async((1,), outbox_key="k", outbox_destination="partner")
    assert rows() == deliveries() == []
