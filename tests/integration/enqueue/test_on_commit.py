"""`delay_on_commit()` is stored in the transaction; a call in an on_commit hook is pointed out."""

from __future__ import annotations

import inspect
import logging
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction
from django.http import HttpResponse
from django.test import RequestFactory
from django.views import View

from tests.proj.relaying import rows

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]


class Boom(Exception):
    pass


CALLS: dict[str, Callable[[Any], Any]] = {
    "delay_on_commit": lambda add: add.delay_on_commit(1, y=2),
    "apply_async_on_commit": lambda add: add.apply_async_on_commit((1,), {"y": 2}),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@each_call
def test_it_is_stored_at_once_in_the_transaction_and_returns_the_result(
    add: Any, call: Any
) -> None:
    with transaction.atomic():
        result = call(add)
        (row,) = rows()
        assert row.task_id == result.id
    assert [(each.args, each.kwargs) for each in rows()] == [("[1]", '{"y": 2}')]


@each_call
def test_it_is_rolled_back_with_the_transaction(add: Any, call: Any) -> None:
    with suppress(Boom), transaction.atomic():
        call(add)
        raise Boom
    assert rows() == []


@each_call
def test_an_eager_task_still_runs_after_the_commit(make_app: Callable[..., Any], call: Any) -> None:
    app, ran = make_app(task_always_eager=True), []

    @app.task(name="eager", shared=False)
    def eager(x: int, y: int) -> None:
        ran.append((x, y))

    with transaction.atomic():
        call(eager)
        assert ran == []
    assert ran == [(1, 2)]


@each_call
def test_an_excluded_task_is_still_sent_after_the_commit(
    make_app: Callable[..., Any], call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(outbox_exclude_tasks=["enqueue.*"], broker="memory://")
    add, sent = app.tasks["enqueue.add"], []
    monkeypatch.setattr("celery.Celery.send_task", lambda *args, **_: sent.append(args[1]))
    with transaction.atomic():
        call(add)
        assert sent == []
    assert sent == ["enqueue.add"]
    assert rows() == []


def test_a_transaction_is_required_for_it_too(make_app: Callable[..., Any]) -> None:
    add = make_app(outbox_require_transaction=True).tasks["enqueue.add"]
    with pytest.raises(RuntimeError, match="outside a transaction"):
        add.delay_on_commit(1)


def places(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each for each in caplog.records if each.__dict__.get("event", "").endswith("_commit")]
    return [each.__dict__["place"] for each in found]


def test_a_call_in_a_hook_is_stored_and_its_place_is_logged_once(
    add: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "celery_outbox")
    for _ in range(3):
        with transaction.atomic():
            transaction.on_commit(lambda: add.delay(1))
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    assert places(caplog) == [f"at {__file__}:{line}"]
    assert len(rows()) == 3
    assert "not_in_transaction" not in caplog.text


def test_a_hook_that_is_the_call_itself_is_found_by_the_block_that_was_committed(
    add: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "celery_outbox")
    with transaction.atomic():
        transaction.on_commit(partial(add.delay, 1))
    (place,) = places(caplog)
    assert place.startswith(f"of the transaction at {__file__}:")
    assert len(rows()) == 1


def test_in_a_decorated_function_it_is_found_by_that_function(
    add: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a view with ATOMIC_REQUESTS: the function has returned when the hook runs."""
    caplog.set_level(logging.WARNING, "celery_outbox")

    def place_order() -> None:
        transaction.on_commit(partial(add.delay, 1))

    class Orders(View):
        def get(self, request: Any) -> HttpResponse:
            place_order()
            return HttpResponse()

    for function in (place_order, wraps(place_order)(partial(place_order))):
        transaction.atomic(function)()
    transaction.atomic(Orders.as_view())(RequestFactory().get("/"))
    first_line = place_order.__code__.co_firstlineno
    assert places(caplog) == [
        f"of the transaction in {__file__}:{first_line}",
        f"of the transaction in {__name__}.{Orders.__qualname__}",
    ]
    assert len(rows()) == 3


def test_two_places_are_two_lines(add: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "celery_outbox")
    with transaction.atomic():
        transaction.on_commit(lambda: add.delay(1))
        transaction.on_commit(lambda: add.delay(2))
    assert len(places(caplog)) == 2
