"""What `outbox_bulk()` gathers follows the connection's transaction, whatever the block does."""

from __future__ import annotations

import contextvars
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from celery import chord, group
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from tests.proj.relaying import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VENDORS = [
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mysql", marks=pytest.mark.mysql),
    "sqlite",
]


class Boom(Exception):
    pass


@pytest.fixture(params=VENDORS, autouse=True)
def _vendor(request: pytest.FixtureRequest, use_database: Callable[..., None]) -> None:
    use_database(request.param)


@pytest.fixture
def by_hand() -> Iterator[None]:
    """Transactions that the caller ends with commit() and rollback()."""
    transaction.set_autocommit(False)
    yield
    transaction.rollback()
    transaction.set_autocommit(True)


def stored() -> list[str]:
    return [row.args for row in rows()]


def inserts(captured: CaptureQueriesContext) -> int:
    return sum("INSERT INTO celery_outbox" in query["sql"] for query in captured.captured_queries)


# -- savepoints made by hand ---------------------------------------------------------------------


def test_a_savepoint_that_is_rolled_back_takes_the_calls_since(app: Any, add: Any) -> None:
    with transaction.atomic(), app.outbox_bulk():
        add.delay(1)
        savepoint = transaction.savepoint()
        add.delay(2)
        transaction.savepoint_rollback(savepoint)
        add.delay(3)
    assert stored() == ["[1]", "[3]"]


def test_a_savepoint_that_is_older_than_the_bulk_takes_all_of_it(app: Any, add: Any) -> None:
    with transaction.atomic():
        savepoint = transaction.savepoint()
        with app.outbox_bulk():
            add.delay(1)
            transaction.savepoint_rollback(savepoint)
            add.delay(2)
    assert stored() == ["[2]"]


def test_a_rollback_after_the_bulk_takes_only_what_came_after_the_savepoint(
    app: Any, add: Any
) -> None:
    with transaction.atomic():
        with app.outbox_bulk():
            add.delay(1)
            savepoint = transaction.savepoint()
            add.delay(2)
        transaction.savepoint_rollback(savepoint)
    assert stored() == ["[1]"]


def test_a_savepoint_that_is_released_keeps_everything(app: Any, add: Any) -> None:
    with transaction.atomic(), app.outbox_bulk():
        add.delay(1)
        savepoint = transaction.savepoint()
        add.delay(2)
        transaction.savepoint_commit(savepoint)
        add.delay(3)
    assert stored() == ["[1]", "[2]", "[3]"]


def test_savepoints_in_plain_sql_count_as_well(app: Any, add: Any) -> None:
    with transaction.atomic(), app.outbox_bulk(), connection.cursor() as cursor:
        add.delay(1)
        cursor.execute(" savepoint mine")
        add.delay(2)
        cursor.execute("rollback to savepoint mine")
    assert stored() == ["[1]"]


def test_the_calls_of_nested_bulks_and_groups_follow_a_savepoint(app: Any, add: Any) -> None:
    with transaction.atomic(), app.outbox_bulk():
        with app.outbox_bulk():
            add.delay(1)
            savepoint = transaction.savepoint()
            add.delay(2)
            group(add.s(3), add.s(4)).apply_async()
        with app.outbox_bulk():
            add.delay(5)
            transaction.savepoint_rollback(savepoint)
            add.delay(6)
        group(add.s(7), add.s(8)).apply_async()
    assert stored() == ["[1]", "[6]", "[7]", "[8]"]


def test_a_chord_in_a_bulk_follows_a_savepoint(make_app: Callable[..., Any]) -> None:
    app = make_app(backend="cache+memory://")
    add = app.tasks["enqueue.add"]
    with transaction.atomic(), app.outbox_bulk():
        chord([add.s(1), add.s(2)], add.si(0))()
        savepoint = transaction.savepoint()
        chord([add.s(3), add.s(4)], add.si(0))()
        transaction.savepoint_rollback(savepoint)
    assert stored() == ["[1]", "[2]"]


def test_a_savepoint_inside_of_an_inner_transaction_leaves_the_outer_calls_alone(
    app: Any, add: Any
) -> None:
    with transaction.atomic(), app.outbox_bulk():
        add.delay(1)
        with suppress(Boom), transaction.atomic():
            savepoint = transaction.savepoint()
            add.delay(2)
            transaction.savepoint_rollback(savepoint)
            raise Boom
        add.delay(3)
    assert stored() == ["[1]", "[3]"]


def test_inner_transactions_of_others_do_not_split_the_insert(app: Any, add: Any) -> None:
    """`get_or_create()` and `update_or_create()` have one each."""
    with transaction.atomic(), CaptureQueriesContext(connection) as captured, app.outbox_bulk():
        for number in range(5):
            with transaction.atomic():
                pass
            with suppress(Boom), transaction.atomic():
                raise Boom
            add.delay(number)
    assert inserts(captured) == 1
    assert len(stored()) == 5


def test_the_callers_own_statement_wrappers_stay_in_place(app: Any, add: Any) -> None:
    seen: list[str] = []

    def wrapper(execute: Any, sql: str, *rest: Any) -> Any:
        seen.append(sql)
        return execute(sql, *rest)

    with transaction.atomic():
        with app.outbox_bulk():
            with connection.execute_wrapper(wrapper):
                add.delay(1)
            assert connection.execute_wrappers != [wrapper]
        assert connection.execute_wrappers == []
    assert seen == []


# -- rollbacks and commits -----------------------------------------------------------------------


@pytest.mark.usefixtures("by_hand")
def test_a_rollback_by_hand_leaves_no_ghost(app: Any, add: Any) -> None:
    with app.outbox_bulk():
        add.delay(1)
        transaction.rollback()
        add.delay(2)
        transaction.commit()
        add.delay(3)
    transaction.rollback()
    assert stored() == ["[2]"]


def test_a_transaction_that_is_marked_for_rollback_takes_its_calls_in_silence(
    app: Any, add: Any
) -> None:
    with transaction.atomic(), app.outbox_bulk():
        add.delay(1)
        transaction.set_rollback(True)
    assert stored() == []


def test_a_group_in_a_transaction_that_is_marked_for_rollback_raises_as_a_call_does(
    add: Any,
) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError):
            group(add.s(1), add.s(2)).apply_async()
    assert stored() == []


def test_a_call_of_an_on_commit_hook_is_stored_whatever_becomes_of_the_block(
    app: Any, add: Any
) -> None:
    with suppress(Boom), app.outbox_bulk():
        with transaction.atomic():
            transaction.on_commit(lambda: add.delay(1))
        raise Boom
    assert stored() == ["[1]"]


def test_a_bulk_inside_of_an_on_commit_hook_is_one_insert(app: Any, add: Any) -> None:
    def hook() -> None:
        with app.outbox_bulk():
            add.delay(1)
            add.delay(2)

    with CaptureQueriesContext(connection) as captured, app.outbox_bulk(), transaction.atomic():
        transaction.on_commit(hook)
    assert inserts(captured) == 1
    assert stored() == ["[1]", "[2]"]


# -- generators ----------------------------------------------------------------------------------


def test_a_call_of_a_generators_consumer_is_stored_though_the_generator_is_abandoned(
    app: Any, add: Any
) -> None:
    def generator() -> Iterator[int]:
        with app.outbox_bulk():
            yield 1
            yield 2

    for number in generator():
        add.delay(number)
        break
    assert stored() == ["[1]"]


def test_the_calls_of_a_generator_belong_to_the_transaction_they_were_made_in(
    app: Any, add: Any
) -> None:
    def generator() -> Iterator[None]:
        with app.outbox_bulk():
            add.delay(1)
            yield
            add.delay(2)

    steps = generator()
    with suppress(Boom), transaction.atomic():
        next(steps)
        raise Boom
    list(steps)
    assert stored() == ["[2]"]


def test_a_generator_may_be_closed_in_another_context(app: Any, add: Any) -> None:
    def generator() -> Iterator[None]:
        with app.outbox_bulk():
            yield

    steps = generator()
    contextvars.copy_context().run(next, steps)
    steps.close()
    add.delay(1)
    assert stored() == ["[1]"]


def test_the_bulk_of_a_generators_consumer_takes_the_calls_of_both(app: Any, add: Any) -> None:
    def generator() -> Iterator[int]:
        with app.outbox_bulk():
            add.delay(1)
            yield 2
            add.delay(3)

    with CaptureQueriesContext(connection) as captured, app.outbox_bulk():
        for number in generator():
            add.delay(number)
    assert inserts(captured) == 1
    assert stored() == ["[1]", "[2]", "[3]"]


def test_a_context_manager_made_of_a_generator_is_one_insert(app: Any, add: Any) -> None:
    @contextmanager
    def unit_of_work() -> Iterator[None]:
        with transaction.atomic(), app.outbox_bulk():
            yield

    with CaptureQueriesContext(connection) as captured:
        with unit_of_work():
            add.delay(1)
            add.delay(2)
        with ExitStack() as stack:
            stack.enter_context(unit_of_work())
            add.delay(3)
            add.delay(4)
    assert inserts(captured) == 2
    assert stored() == ["[1]", "[2]", "[3]", "[4]"]
