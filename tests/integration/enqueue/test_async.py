"""Calls from async code: stored without blocking the loop, with the task's own options."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from unittest import mock
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from celery import Task, shared_task
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, connections, transaction

from tests.proj.relaying import messages, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]


class Boom(Exception):
    pass


def run(view: Coroutine[Any, Any, Any]) -> Any:
    async def request() -> Any:
        try:
            return await view
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(request())


@pytest.fixture
def slow(app: Any) -> Any:
    """A task with options of its own."""

    @app.task(name="enqueue.slow", queue="slow", priority=7, expires=60, shared=False)
    def slow(x: Any) -> Any:
        return x

    return slow


def test_asend_task_stores_from_async_code(app: Any) -> None:
    result = run(app.asend_task("from.async", (1,), {"a": 2}, priority=3))
    assert [(row.task_id, row.task_name) for row in rows()] == [(result.id, "from.async")]
    assert messages(datetime.now(timezone.utc))[0].priority == 3


@pytest.mark.parametrize("by_delay", [True, False])
def test_async_calls_use_the_tasks_own_options(slow: Any, by_delay: bool) -> None:
    result = run(slow.adelay(1) if by_delay else slow.aapply_async((1,)))
    (message,) = messages(datetime.now(timezone.utc))
    assert rows()[0].task_id == result.id
    assert (message.routing_key, message.priority) == ("slow", 7)
    assert message.headers["expires"] is not None


def test_options_of_the_async_call_come_first(slow: Any) -> None:
    run(slow.aapply_async((1,), queue="fast", priority=2))
    (message,) = messages(datetime.now(timezone.utc))
    assert (message.routing_key, message.priority) == ("fast", 2)


def test_every_kind_of_task_has_async_calls(app: Any) -> None:
    class Base(Task):
        pass

    class ClassBased(app.Task):  # type: ignore[misc, name-defined]
        name = "kinds.class"

        def run(self, x: int) -> int:
            return x

    @app.task(name="kinds.based", base=Base, shared=False)
    def based(x: int) -> int:
        return x

    name = f"kinds.shared.{uuid4().hex}"

    @shared_task(name=name)
    def shared(x: int) -> int:
        return x

    async def view() -> None:
        await app.register_task(ClassBased()).adelay(1)
        await based.adelay(2)
        await app.tasks[name].adelay(3)

    run(view())
    assert [row.task_name for row in rows()] == ["kinds.class", "kinds.based", name]


def test_a_task_keeps_async_methods_of_its_own(app: Any) -> None:
    class Base(Task):
        async def adelay(self, *args: Any) -> str:
            return "own"

    @app.task(name="kinds.own", base=Base, shared=False)
    def own() -> None:
        pass

    assert run(own.adelay()) == "own"


def test_async_calls_run_at_once_in_eager_mode(make_app: Callable[..., Any]) -> None:
    add = make_app(task_always_eager=True).tasks["enqueue.add"]
    assert run(add.adelay(1, 2)).get() == 3
    assert rows() == []


def test_a_function_with_a_transaction_is_the_transactional_way(
    make_app: Callable[..., Any],
) -> None:
    add = make_app(outbox_require_transaction=True).tasks["enqueue.add"]

    @transaction.atomic
    def pay(number: int, *, fail: bool = False) -> None:
        add.delay(number)
        if fail:
            raise Boom

    async def view() -> None:
        await sync_to_async(pay)(1)
        with suppress(Boom):
            await sync_to_async(pay)(2, fail=True)

    run(view())
    assert [row.args for row in rows()] == ["[1]"]


@pytest.mark.parametrize("bulk", [False, True])
def test_a_sync_call_inside_of_a_running_loop_says_what_to_do(app: Any, bulk: bool) -> None:
    async def view() -> None:
        if bulk:
            with app.outbox_bulk():
                app.send_task("from.async")
        else:
            app.send_task("from.async")

    with pytest.raises(SynchronousOnlyOperation, match=r"await task\.adelay.*sync_to_async"):
        asyncio.run(view())
    assert rows() == []


def test_it_says_so_after_a_database_error_too(app: Any) -> None:
    async def view() -> None:
        with mock.patch.dict(os.environ, DJANGO_ALLOW_ASYNC_UNSAFE="1"):
            connection.ensure_connection()
        connection.errors_occurred = True
        app.send_task("from.async")

    with pytest.raises(SynchronousOnlyOperation, match=r"await task\.adelay"):
        asyncio.run(view())
