"""`outbox_bulk()`: one INSERT per chunk at the end of the block, or nothing."""

from __future__ import annotations

import contextvars
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from celery import group
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_integration.enqueue import rows as row_module
from tests.proj.relaying import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]


class Boom(Exception):
    pass


def stored() -> list[str]:
    return [row.args for row in rows()]


def inserts(captured: CaptureQueriesContext) -> int:
    return sum("INSERT INTO celery_outbox" in query["sql"] for query in captured.captured_queries)


def test_one_insert_for_many_calls(app: Any, add: Any) -> None:
    with transaction.atomic(), CaptureQueriesContext(connection) as captured:
        with app.outbox_bulk():
            for number in range(200):
                add.delay(number)
        assert len(captured) == 1
    assert stored() == [f"[{number}]" for number in range(200)]


def test_nothing_is_written_before_the_end(app: Any, add: Any) -> None:
    with app.outbox_bulk():
        add.delay(1)
        assert rows() == []
    assert stored() == ["[1]"]


def test_large_bulks_are_written_in_chunks(app: Any, add: Any) -> None:
    count = 2 * row_module.CHUNK_ROWS + 1
    with transaction.atomic(), CaptureQueriesContext(connection) as captured, app.outbox_bulk():
        for number in range(count):
            add.delay(number)
    assert inserts(captured) == 3
    assert stored() == [f"[{number}]" for number in range(count)]


def test_chunks_are_limited_in_bytes_as_well(app: Any, add: Any) -> None:
    with transaction.atomic(), CaptureQueriesContext(connection) as captured, app.outbox_bulk():
        for _ in range(4):
            add.delay("x" * (row_module.CHUNK_BYTES // 2))
    assert inserts(captured) == 4
    assert len(rows()) == 4


@contextmanager
def unique_task_ids() -> Iterator[None]:
    """A database that refuses the second row of a task id."""
    drop = "DROP INDEX once" + (" ON celery_outbox" if connection.vendor == "mysql" else "")
    with connection.cursor() as cursor:
        cursor.execute("CREATE UNIQUE INDEX once ON celery_outbox (task_id)")
        try:
            yield
        finally:
            cursor.execute(drop)


@pytest.mark.parametrize(
    "vendor", ["postgresql", pytest.param("mysql", marks=pytest.mark.mysql), "sqlite"]
)
def test_several_chunks_outside_of_a_transaction_are_all_or_nothing(
    app: Any, add: Any, use_database: Callable[..., None], vendor: str
) -> None:
    use_database(vendor)
    with unique_task_ids():
        with pytest.raises(IntegrityError):
            _two_chunks_of_which_the_second_fails(app, add)
        assert rows() == []


def _two_chunks_of_which_the_second_fails(app: Any, add: Any) -> None:
    with app.outbox_bulk():
        add.apply_async((0,), task_id="twice")
        for number in range(row_module.CHUNK_ROWS):
            add.delay(number)
        add.apply_async((0,), task_id="twice")


def test_nothing_is_written_on_an_exception(app: Any, add: Any) -> None:
    with transaction.atomic():
        with suppress(Boom), app.outbox_bulk():
            add.delay(1)
            raise Boom
        add.delay(2)
    assert stored() == ["[2]"]


def test_nested_bulks_are_written_with_the_outermost(app: Any, add: Any) -> None:
    with transaction.atomic(), CaptureQueriesContext(connection) as captured:
        with app.outbox_bulk():
            add.delay(1)
            with app.outbox_bulk():
                add.delay(2)
            group(add.s(3), add.s(4)).apply_async()
        assert inserts(captured) == 1
    assert stored() == ["[1]", "[2]", "[3]", "[4]"]


def test_an_inner_bulk_that_fails_takes_only_its_own_calls(app: Any, add: Any) -> None:
    with app.outbox_bulk():
        add.delay(1)
        with suppress(Boom), app.outbox_bulk():
            add.delay(2)
            raise Boom
        add.delay(3)
    assert stored() == ["[1]", "[3]"]


def test_an_inner_transaction_that_is_rolled_back_leaves_no_ghost(app: Any, add: Any) -> None:
    with transaction.atomic(), app.outbox_bulk():
        add.delay(1)
        with suppress(Boom), transaction.atomic():
            add.delay(2)
            raise Boom
        with transaction.atomic():
            add.delay(3)
        add.delay(4)
    assert sorted(stored()) == ["[1]", "[3]", "[4]"]


def test_a_transaction_inside_of_a_bulk_that_is_rolled_back_leaves_no_ghost(
    app: Any, add: Any
) -> None:
    with app.outbox_bulk():
        with suppress(Boom), transaction.atomic():
            add.delay(1)
            raise Boom
        add.delay(2)
    assert stored() == ["[2]"]


def test_a_rolled_back_group_in_a_savepoint_leaves_no_ghost(app: Any, add: Any) -> None:
    with transaction.atomic(), app.outbox_bulk():
        with suppress(Boom), transaction.atomic():
            group(add.s(1), add.s(2)).apply_async()
            raise Boom
        add.delay(3)
    assert stored() == ["[3]"]


def test_a_bulk_writes_to_every_database_its_own_rows(
    app: Any, add: Any, use_database: Callable[..., None]
) -> None:
    use_database("sqlite", alias="orders")
    with app.outbox_bulk():
        add.delay(1)
        add.apply_async((2,), outbox_using="orders")
    assert (stored(), [row.args for row in rows("orders")]) == (["[1]"], ["[2]"])


def test_bulks_of_two_threads_do_not_mix(app: Any, add: Any) -> None:
    entered, go = threading.Event(), threading.Event()

    def other() -> None:
        with suppress(Boom), app.outbox_bulk():
            add.delay("other")
            entered.set()
            go.wait(10)
            raise Boom
        connection.close()

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(10)
    with app.outbox_bulk():
        add.delay("own")
    go.set()
    thread.join()
    assert stored() == ['["own"]']


def test_a_call_in_a_copied_context_is_stored_after_the_bulk_has_ended(app: Any, add: Any) -> None:
    """A task of an event loop that was created inside the block may outlive it."""
    with app.outbox_bulk():
        copied = contextvars.copy_context()
        add.delay(1)
    copied.run(add.delay, 2)
    assert stored() == ["[1]", "[2]"]


def test_a_call_of_another_thread_belongs_to_its_own_transaction(app: Any, add: Any) -> None:
    def other() -> None:
        with transaction.atomic():
            add.delay("other")
        connection.close()

    with suppress(Boom), transaction.atomic(), app.outbox_bulk():
        thread = threading.Thread(target=contextvars.copy_context().run, args=[other])
        thread.start()
        thread.join()
        raise Boom
    assert stored() == ['["other"]']


def test_a_setting_that_is_changed_inside_a_bulk_counts_at_once(app: Any, add: Any) -> None:
    with app.outbox_bulk():
        add.delay(1)
        app.conf.task_send_sent_event = True
        add.delay(2)
        app.conf.update(task_send_sent_event=False)
        add.delay(3)
    assert ['"event"' in row.options for row in rows()] == [False, True, False]


def test_an_empty_bulk_writes_nothing(app: Any) -> None:
    with transaction.atomic(), CaptureQueriesContext(connection) as captured, app.outbox_bulk():
        pass
    assert len(captured) == 0
