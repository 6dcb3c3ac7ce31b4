"""A row lives and dies with the caller's transaction, in the database of that transaction."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
import pytest
from celery import chord, group
from django.db import connection, transaction
from django.db.utils import ConnectionDoesNotExist
from django.test import TestCase
from django.test.utils import CaptureQueriesContext, override_settings

from celery_outbox_steps.errors import ConfigurationError
from django_integration.enqueue.enqueuer import TransactionRequired
from tests.proj.relaying import rows

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]
WARNING = "celery_outbox_not_in_transaction"


class Boom(Exception):
    pass


class ToOrders:
    """A router that keeps the outbox in the database `orders`."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "orders" if model._meta.app_label == "celery_outbox" else None


def names(using: str = "default") -> list[str]:
    return [row.args for row in rows(using)]


def test_a_commit_keeps_the_row(add: Any) -> None:
    with transaction.atomic():
        result = add.delay(1, y=2)
    (row,) = rows()
    assert (row.task_id, row.task_name, row.args, row.kwargs) == (
        result.id, "enqueue.add", "[1]", '{"y": 2}',
    )  # fmt: skip
    assert row.due_at is not None
    assert (row.retries, row.claimed_by, row.payload, row.schema_version) == (0, None, None, 1)


def test_a_rollback_leaves_no_row(add: Any) -> None:
    with suppress(Boom), transaction.atomic():
        add.delay(1)
        raise Boom
    assert rows() == []


def test_the_rollback_of_a_savepoint_leaves_only_the_rest(add: Any) -> None:
    with transaction.atomic():
        add.delay(1)
        with suppress(Boom), transaction.atomic():
            add.delay(2)
            raise Boom
        add.delay(3)
    assert names() == ["[1]", "[3]"]


def test_outside_of_a_transaction_the_row_is_stored_at_once(add: Any) -> None:
    add.delay(1)
    connection.close()
    assert names() == ["[1]"]


def test_the_times_are_the_databases_own(add: Any) -> None:
    add.delay(1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp() - created_at, due_at = created_at "
                       "FROM celery_outbox")  # fmt: skip
        age, _ = cursor.fetchone()
    assert 0 <= age.total_seconds() < 10


def test_each_capture_of_commit_callbacks_that_runs_them_has_its_own(add: Any) -> None:
    """As in a project's TestCase, whose transaction is never committed."""
    seen = []
    with transaction.atomic():
        for number in range(2):
            with TestCase.captureOnCommitCallbacks(execute=True) as callbacks:
                add.delay(number)
            seen.append(len(callbacks))
    assert seen == [1, 1]


# -- which database ------------------------------------------------------------------------------


def test_the_row_is_in_the_database_that_the_call_names(
    add: Any, use_database: Callable[..., None]
) -> None:
    use_database("postgresql", alias="orders", name="orders")
    with transaction.atomic("orders"):
        add.apply_async((1,), outbox_using="orders")
    assert (names("default"), names("orders")) == ([], ["[1]"])


def test_it_is_rolled_back_with_that_database_and_not_with_the_default(
    add: Any, use_database: Callable[..., None]
) -> None:
    use_database("postgresql", alias="orders", name="orders")
    with suppress(Boom), transaction.atomic("orders"):
        with transaction.atomic():
            add.apply_async((1,), outbox_using="orders")
        raise Boom
    assert names("orders") == []


def test_the_row_is_in_the_database_that_the_router_names(
    add: Any, use_database: Callable[..., None]
) -> None:
    use_database("sqlite", alias="orders")
    with override_settings(DATABASE_ROUTERS=[ToOrders()]), transaction.atomic("orders"):
        add.delay(1)
    assert (names("default"), names("orders")) == ([], ["[1]"])


def test_in_a_transaction_is_asked_of_the_rows_own_database(
    make_app: Callable[..., Any], use_database: Callable[..., None]
) -> None:
    use_database("sqlite", alias="orders")
    add = make_app(outbox_require_transaction=True).tasks["enqueue.add"]
    with transaction.atomic(), pytest.raises(TransactionRequired, match="orders"):
        add.apply_async((1,), outbox_using="orders")


def test_signatures_carry_the_database(add: Any, use_database: Callable[..., None]) -> None:
    use_database("sqlite", alias="orders")
    group(add.s(1).set(outbox_using="orders"), add.s(2)).apply_async()
    assert (names("default"), names("orders")) == (["[2]"], ["[1]"])


def test_an_unknown_database_is_refused_before_anything_happens(app: Any) -> None:
    with pytest.raises(ConnectionDoesNotExist):
        app.send_task("some.task", outbox_using="nowhere")


# -- transaction required or not -----------------------------------------------------------------


def test_the_warning_comes_once_per_task_name(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.one", "a.two", "a.one", "a.one"):
        app.send_task(name)
    said = [r.task_name for r in caplog.records if getattr(r, "event", "") == WARNING]
    assert said == ["a.one", "a.two"]


def test_no_warning_inside_of_a_transaction(add: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), transaction.atomic():
        add.delay(1)
    assert caplog.records == []


def test_no_warning_inside_of_a_running_task(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    task = app.tasks["enqueue.add"]
    task.push_request(id="parent", called_directly=False)
    from celery._state import _task_stack

    _task_stack.push(task)
    try:
        task.delay(1)
    finally:
        _task_stack.pop()
        task.pop_request()
    assert caplog.records == []
    assert len(rows()) == 1


def test_celery_call_needs_no_transaction(
    make_app: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(outbox_require_transaction=True)
    with click.Context(click.Command("call"), info_name="call"):
        app.send_task("from.the.command.line")
    assert len(rows()) == 1
    assert WARNING not in caplog.text


def test_required_transactions_are_required(make_app: Callable[..., Any]) -> None:
    add = make_app(outbox_require_transaction=True).tasks["enqueue.add"]
    with pytest.raises(TransactionRequired, match="CELERY_OUTBOX_REQUIRE_TRANSACTION"):
        add.delay(1)
    assert rows() == []
    with transaction.atomic():
        add.delay(2)
    assert names() == ["[2]"]


def test_the_calls_of_on_commit_hooks_are_stored_where_transactions_are_required(
    make_app: Callable[..., Any],
) -> None:
    add = make_app(outbox_require_transaction=True).tasks["enqueue.add"]

    def hook() -> None:
        with transaction.atomic():
            pass
        add.delay(2)

    with transaction.atomic():
        transaction.on_commit(lambda: add.delay(1))
        transaction.on_commit(hook)
    assert names() == ["[1]", "[2]"]


def test_a_hook_that_fails_does_not_excuse_later_calls(make_app: Callable[..., Any]) -> None:
    add = make_app(outbox_require_transaction=True).tasks["enqueue.add"]

    def hook() -> None:
        raise Boom

    with suppress(Boom), transaction.atomic():
        transaction.on_commit(hook)
    with pytest.raises(TransactionRequired):
        add.delay(1)


def test_on_commit_outside_of_a_transaction_is_refused(make_app: Callable[..., Any]) -> None:
    add = make_app(outbox_require_transaction=True).tasks["enqueue.add"]
    with pytest.raises(TransactionRequired):
        transaction.on_commit(lambda: add.delay(1))


def test_a_transaction_by_hand_is_one(
    make_app: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    add = make_app(outbox_require_transaction=True).tasks["enqueue.add"]
    transaction.set_autocommit(False)
    try:
        add.delay(1)
        transaction.rollback()
        add.delay(2)
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert names() == ["[2]"]
    assert WARNING not in caplog.text


def test_a_refused_call_was_never_announced(make_app: Callable[..., Any]) -> None:
    from celery.signals import before_task_publish

    announced = []
    before_task_publish.connect(lambda sender, **_: announced.append(sender), weak=False)
    try:
        with pytest.raises(TransactionRequired):
            make_app(outbox_require_transaction=True).send_task("refused.task")
    finally:
        before_task_publish.receivers.pop()
    assert announced == []


def test_a_bad_setting_is_refused_by_the_first_call(make_app: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="CELERY_OUTBOX_EXCLUDE_TASKS"):
        make_app(outbox_exclude_tasks="a.name").send_task("x")


# -- how many queries ----------------------------------------------------------------------------


def queries(call: Callable[[], Any]) -> list[str]:
    with transaction.atomic(), CaptureQueriesContext(connection) as captured:
        call()
    return [query["sql"] for query in captured.captured_queries]


def test_one_query_per_call(add: Any) -> None:
    assert len(queries(lambda: add.delay(1))) == 1
    assert len(queries(lambda: [add.delay(i) for i in range(3)])) == 3


def test_one_query_per_group(add: Any) -> None:
    assert len(queries(lambda: group(add.s(i) for i in range(50)).apply_async())) == 1
    assert len(rows()) == 50


def test_one_query_per_group_of_chains(add: Any) -> None:
    assert len(queries(lambda: group(add.s(i) | add.s(1) for i in range(5)).apply_async())) == 1


def test_one_query_per_chord_header(make_app: Callable[..., Any]) -> None:
    add = make_app(backend="cache+memory://").tasks["enqueue.add"]
    assert len(queries(chord([add.s(i) for i in range(20)], add.si(1)))) == 1
    assert len(rows()) == 20


def test_one_query_for_chunks(add: Any) -> None:
    calls = zip(range(20), range(20), strict=True)
    assert len(queries(lambda: add.chunks(calls, 5).apply_async())) == 1
    assert len(rows()) == 4
