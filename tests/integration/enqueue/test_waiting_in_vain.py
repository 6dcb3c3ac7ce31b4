"""A result of a call that the caller has not committed is not waited for: it could never come."""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group
from celery.exceptions import TimeoutError as CeleryTimeout
from celery.result import AsyncResult, result_from_tuple
from django.db import connection, transaction

from celery_outbox_steps.errors import OutboxError
from tests.helpers import require_service
from tests.integration.enqueue.test_inside_testcase import in_testcase

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]
AFTER = "published after the commit"
BACKENDS = ["cache+memory://", pytest.param("redis", marks=pytest.mark.redis)]


@pytest.fixture(params=BACKENDS)
def app(request: pytest.FixtureRequest, make_app: Callable[..., Any]) -> Any:
    backend = request.param
    return make_app(backend=require_service("redis").url if backend == "redis" else backend)


WAITS: dict[str, Callable[[Any], Any]] = {
    "a call": lambda add: add.delay(1),
    "a call for later": lambda add: add.apply_async((1,), countdown=60),
    "a call with a key": lambda add: add.apply_async((1,), outbox_key="it"),
    "a chain": lambda add: chain(add.s(1), add.s(2), add.s(3)).delay(),
    "a group": lambda add: group(add.s(1), add.s(2)).delay(),
    "a chord": lambda add: chord([add.s(1), add.s(2)], add.si(3)).delay(),
    "a result by id": lambda add: add.AsyncResult(add.delay(1).id),
    "a copy": lambda add: result_from_tuple(add.delay(1).as_tuple(), app=add.app),
}


@pytest.mark.parametrize("call", WAITS.values(), ids=list(WAITS))
def test_in_the_open_transaction_it_is_refused_at_once(
    call: Callable[[Any], Any], add: Any
) -> None:
    with transaction.atomic():
        result = call(add)
        with pytest.raises(OutboxError, match=AFTER):
            result.get()


@pytest.mark.parametrize("wait", ["wait", "get"])
def test_under_every_name_and_with_a_timeout(wait: str, add: Any) -> None:
    with transaction.atomic():
        result = add.delay(1)
        with transaction.atomic(), pytest.raises(OutboxError, match=AFTER):
            getattr(result, wait)(timeout=5)


@pytest.mark.parametrize("wait", ["get", "join"])
def test_a_group_is_refused_for_one_of_its_tasks(wait: str, app: Any, add: Any) -> None:
    before = add.delay(1)
    app.backend.store_result(before.id, 2, "SUCCESS")
    with transaction.atomic():
        results = app.ResultSet([before, add.delay(2)])
        with pytest.raises(OutboxError, match=AFTER):
            getattr(results, wait)()


def test_after_the_commit_it_is_waited_for_as_ever(app: Any, add: Any) -> None:
    with transaction.atomic():
        result = add.delay(1)
    with pytest.raises(CeleryTimeout):
        result.get(timeout=0.05)
    app.backend.store_result(result.id, 3, "SUCCESS")
    assert result.get(timeout=5) == 3


def test_in_an_on_commit_hook_the_call_is_committed(app: Any, add: Any) -> None:
    found = []
    with transaction.atomic():
        result = add.delay(1)
        app.backend.store_result(result.id, 3, "SUCCESS")
        transaction.on_commit(lambda: found.append(result.get(timeout=5)))
    assert found == [3]


def test_a_later_transaction_of_the_caller_waits_for_earlier_calls(app: Any, add: Any) -> None:
    result = add.delay(1)
    with transaction.atomic():
        add.delay(2)
        with pytest.raises(CeleryTimeout):
            result.get(timeout=0.05)
        app.backend.store_result(result.id, 3, "SUCCESS")
        assert result.get(timeout=5) == 3


def test_what_a_savepoint_took_back_is_not_refused(add: Any) -> None:
    with transaction.atomic():
        with suppress(LookupError), transaction.atomic():
            result = add.delay(1)
            raise LookupError
        with pytest.raises(CeleryTimeout):
            result.get(timeout=0.05)


def test_a_result_that_is_there_is_returned(app: Any, add: Any) -> None:
    with transaction.atomic():
        result = add.delay(1)
        app.backend.store_result(result.id, 3, "SUCCESS")
        assert result.get(timeout=5) == 3


def test_before_the_end_of_a_bulk(app: Any, add: Any) -> None:
    with app.outbox_bulk():
        result = add.delay(1)
        with pytest.raises(OutboxError, match="at the end of the outbox_bulk"):
            result.get()


def test_in_a_testcase_the_error_says_what_to_do(add: Any) -> None:
    def body() -> None:
        with transaction.atomic():
            result = add.delay(1)
        result.get()

    with pytest.raises(OutboxError, match=r"drain_outbox\(\)"):
        in_testcase(body)


def test_eager_results_are_as_ever(app: Any, add: Any) -> None:
    app.conf.task_always_eager = True
    with transaction.atomic():
        assert add.delay(1, 2).get() == 3


def test_results_are_celerys_own(app: Any, add: Any) -> None:
    with transaction.atomic():
        result = add.delay(1)
    assert type(result) is app.AsyncResult
    assert issubclass(app.AsyncResult, AsyncResult)
    assert "django_integration" not in str(pickle.dumps(result.as_tuple()))


def test_a_transaction_remembers_few_calls_however_many_it_makes(add: Any) -> None:
    with transaction.atomic():
        for number in range(1100):
            add.delay(number)
        (hook,) = [each for _, each, *_ in connection.run_on_commit]
        assert len(hook.task_ids) == 1000
        last = add.delay("last")
        with pytest.raises(OutboxError, match=AFTER):
            last.get()
