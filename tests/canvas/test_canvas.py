"""Each scenario gives the same on plain Celery and through the outbox, results and errors alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeout
from celery.result import GroupResult

from tests import helpers

if TYPE_CHECKING:
    from tests.canvas.conftest import Side

pytestmark = [pytest.mark.postgresql, pytest.mark.rabbitmq, pytest.mark.redis]

TIMEOUT = 30
Scenario = Callable[["Side"], Any]
SCENARIOS: list[Any] = []


def scenario(function: Scenario) -> Scenario:
    SCENARIOS.append(pytest.param(function, id=function.__name__))
    return function


@pytest.mark.parametrize("play", SCENARIOS)
def test_same_as_plain_celery(play: Scenario, both: list[Side]) -> None:
    plain, outbox = (_outcome(play, side) for side in both)
    assert outbox == plain


def test_what_the_results_are(both: list[Side]) -> None:
    """So that two equal failures are not taken for a success."""
    for side in both:
        assert a_chain(side) == [12, 6, 3]
        assert a_group(side) == [0, 1, 2, 3, 4]
        assert retries(side) == [7, 2]


def _outcome(play: Scenario, side: Side) -> Any:
    try:
        return play(side)
    except NotImplementedError as exc:  # chords need a backend that can join: rpc can't
        return type(exc).__name__
    except CeleryTimeout:
        raise  # that neither side has a result shows nothing
    except Exception as exc:
        return type(exc).__name__, str(exc)


def call(side: Side, signature: Any, **options: Any) -> Any:
    with side.calling():
        return signature.apply_async(**options)


def get(result: Any) -> Any:
    return result.get(timeout=TIMEOUT)


# -- calls ----------------------------------------------------------------------------------------


@scenario
def a_call(side: Side) -> Any:
    return get(call(side, side.task("add").s(2, 3)))


@scenario
def a_call_by_name(side: Side) -> Any:
    with side.calling():
        result = side.app.send_task("add", (2,), {"y": 5})
    return get(result), result.state


@scenario
def a_failure(side: Side) -> Any:
    return get(call(side, side.task("fail").s()))


@scenario
def what_a_task_knows(side: Side) -> Any:
    options = {
        "priority": 3, "headers": {"tenant": "t-1"}, "shadow": "other", "time_limit": 50,
        "soft_time_limit": 40, "expires": 300, "argsrepr": "<hidden>",
    }  # fmt: skip
    return get(call(side, side.task("context").s(1), **options))


@scenario
def an_ignored_result(side: Side) -> Any:
    key = side.key()
    result = call(side, side.task("trace").s("x", key=key), ignore_result=True)
    return side.traced(key, 1), result.state


@scenario
def calls_of_a_task(side: Side) -> Any:
    key = side.key()
    return get(call(side, side.task("spawn").s(5, key))), side.traced(key, 5)


@scenario
def an_eta(side: Side) -> Any:
    began = time.monotonic()
    eta = datetime.now(timezone.utc) + timedelta(seconds=1)
    known = get(call(side, side.task("context").s(), eta=eta))
    return known, time.monotonic() - began >= 0.9


@scenario
def a_countdown(side: Side) -> Any:
    began = time.monotonic()
    return get(call(side, side.task("add").s(1, 1), countdown=1)), time.monotonic() - began >= 0.9


@scenario
def an_expired_call(side: Side) -> Any:
    past = datetime.now(timezone.utc) - timedelta(seconds=5)
    return get(call(side, side.task("add").s(1, 1), expires=past))


@scenario
def a_call_that_is_revoked_in_the_worker(side: Side) -> Any:
    side.app.conf.outbox_hold = None
    try:
        result = call(side, side.task("add").s(1, 1), countdown=1.5)
    finally:
        side.app.conf.outbox_hold = 0
    helpers.wait_for(lambda: f"{result.id}] received" in side.logs(), 20, side.logs)
    result.revoke()
    with pytest.raises(TaskRevokedError):
        get(result)
    return result.state


# -- calls for later ------------------------------------------------------------------------------


@scenario
def a_countdown_and_expires(side: Side) -> Any:
    return get(call(side, side.task("context").s(), countdown=0.5, expires=60))


@scenario
def a_chain_for_later(side: Side) -> Any:
    add = side.task("add")
    return get(call(side, add.s(1, 1) | add.s(1).set(countdown=0.5), countdown=0.5))


@scenario
def a_group_for_later(side: Side) -> Any:
    return get(call(side, group(side.task("add").s(n, 1) for n in range(3)), countdown=0.5))


@scenario
def a_group_that_is_spread(side: Side) -> Any:
    tasks = group(side.task("add").s(n, 1) for n in range(3))
    return get(call(side, tasks.skew(start=0.2, stop=2, step=0.2)))


@scenario
def a_chord_for_later(side: Side) -> Any:
    header = [side.task("add").s(n, 1) for n in range(3)]
    return get(call(side, chord(header, side.task("total").s()), countdown=0.5))


@scenario
def a_chord_whose_body_is_for_later(side: Side) -> Any:
    header = [side.task("add").s(n, 1) for n in range(3)]
    return get(call(side, chord(header, side.task("total").s().set(countdown=0.5))))


@scenario
def a_link_for_later(side: Side) -> Any:
    key = side.key()
    link = side.task("trace").s(key=key).set(countdown=0.5)
    return get(call(side, side.task("add").s(1, 1), link=link)), side.traced(key, 1)


@scenario
def retries_with_long_to_wait(side: Side) -> Any:
    return get(call(side, side.task("retry_later").s(7)))


@scenario
def retries_with_long_to_wait_in_a_chain(side: Side) -> Any:
    return get(call(side, side.task("retry_later").s(7) | side.task("listing").s("after")))


@scenario
def a_replacement_for_later(side: Side) -> Any:
    key = side.key()
    call(side, side.task("replace").s("later", 1) | side.task("trace").s(key=key))
    return side.traced(key, 1)  # with rpc, the caller does not get a replacement's result


# -- chains ---------------------------------------------------------------------------------------


@scenario
def a_chain(side: Side) -> Any:
    add, double = side.task("add"), side.task("double")
    result = call(side, chain(add.s(1, 2), double.s(), double.s()))
    values = [get(result)]
    while result.parent is not None:
        result = result.parent
        values.append(get(result))
    return values


@scenario
def a_chain_with_an_immutable_link(side: Side) -> Any:
    add, double = side.task("add"), side.task("double")
    return get(call(side, add.s(1, 2) | double.si(21) | add.s(1)))


@scenario
def a_chain_that_breaks(side: Side) -> Any:
    add, fail, key = side.task("add"), side.task("fail"), side.key()
    after = side.task("trace").s(key=key)
    result = call(side, chain(add.s(1, 2), fail.s(), after))
    errors = _error(result), _error(result.parent)
    return errors, get(result.parent.parent), side.traces.llen(key)


@scenario
def the_place_in_a_chain(side: Side) -> Any:
    context, listing = side.task("context"), side.task("listing")
    return get(call(side, context.s() | context.s() | listing.s("end")))


# -- groups ---------------------------------------------------------------------------------------


@scenario
def a_group(side: Side) -> Any:
    return get(call(side, group(side.task("add").s(n, 0) for n in range(5))))


@scenario
def an_empty_group(side: Side) -> Any:
    return get(call(side, group(app=side.app)))


@scenario
def nested_groups(side: Side) -> Any:
    add = side.task("add")
    inner = group(add.s(10, n) for n in range(2))
    return get(call(side, group(add.s(1, 1), inner, group(inner, add.s(2, 2)))))


@scenario
def a_group_of_chains(side: Side) -> Any:
    add, double = side.task("add"), side.task("double")
    return get(call(side, group(add.s(n, 1) | double.s() for n in range(3))))


@scenario
def a_group_with_a_failure(side: Side) -> Any:
    result = call(side, group(side.task("add").s(1, 1), side.task("fail").s()))
    values = result.get(timeout=TIMEOUT, propagate=False)
    return values[0], repr(values[1]), result.failed(), result.completed_count()


@scenario
def a_group_that_is_stored(side: Side) -> Any:
    result = call(side, group(side.task("add").s(n, 1) for n in range(3)))
    result.save()
    restored = GroupResult.restore(result.id, app=side.app)
    return get(restored)


@scenario
def chunks_and_maps(side: Side) -> Any:
    add, double = side.task("add"), side.task("double")
    with side.calling():
        results = [
            add.chunks([(n, n) for n in range(5)], 2).apply_async(),
            add.starmap([(1, 2), (3, 4)]).apply_async(),
            double.map([1, 2, 3]).apply_async(),
        ]
    return [get(result) for result in results]


# -- chords ---------------------------------------------------------------------------------------


@scenario
def a_chord(side: Side) -> Any:
    add, total = side.task("add"), side.task("total")
    return get(call(side, chord([add.s(n, n) for n in range(5)], total.s())))


@scenario
def a_chord_in_a_chain(side: Side) -> Any:
    add, total, double = side.task("add"), side.task("total"), side.task("double")
    header = group(add.s(n) for n in range(3))
    return get(call(side, add.s(1, 1) | header | total.s() | double.s()))


@scenario
def a_chord_of_chords(side: Side) -> Any:
    add, total = side.task("add"), side.task("total")
    inner = chord([add.s(n, 1) for n in range(2)], total.s())
    return get(call(side, chord([inner, add.s(5, 5)], total.s())))


@scenario
def a_chord_with_an_empty_header(side: Side) -> Any:
    return get(call(side, chord([], side.task("total").s())))


@scenario
def a_chord_whose_header_fails(side: Side) -> Any:
    key = side.key()
    body = side.task("total").s().on_error(side.task("trace_error").s(key=key))
    result = call(side, chord([side.task("add").s(1, 1), side.task("fail").s()], body))
    kind, text = _error(result)
    helpers.wait_for(result.failed, TIMEOUT, side.logs)
    return kind, "on purpose" in text, len(side.traced(key, 1))


@scenario
def a_chord_whose_body_fails(side: Side) -> Any:
    return get(call(side, chord([side.task("add").s(1, 1)], side.task("fail").s())))


@scenario
def the_place_in_a_chord(side: Side) -> Any:
    context = side.task("context")
    return get(call(side, chord([context.s(n) for n in range(2)], side.task("listing").s())))


# -- callbacks ------------------------------------------------------------------------------------


@scenario
def a_link(side: Side) -> Any:
    key = side.key()
    result = call(side, side.task("add").s(2, 3), link=side.task("trace").s("linked", key=key))
    return get(result), side.traced(key, 1)


@scenario
def several_links(side: Side) -> Any:
    key, trace = side.key(), side.task("trace")
    links = [trace.s(n, key=key) for n in range(3)]
    return get(call(side, side.task("add").s(2, 3), link=links)), side.traced(key, 3)


@scenario
def a_link_error(side: Side) -> Any:
    key = side.key()
    errback = side.task("trace_error").s(key=key)
    return _error(call(side, side.task("fail").s(), link_error=errback)), side.traced(key, 1)


@scenario
def a_link_error_of_a_chain(side: Side) -> Any:
    key = side.key()
    broken = side.task("add").s(1, 1) | side.task("fail").s() | side.task("double").s()
    result = call(side, broken.on_error(side.task("trace_error").s(key=key)))
    return _error(result.parent), side.traced(key, 1)


# -- retries and replacements ---------------------------------------------------------------------


@scenario
def retries(side: Side) -> Any:
    return get(call(side, side.task("retry_twice").s(7)))


@scenario
def retries_in_a_chain(side: Side) -> Any:
    return get(call(side, side.task("retry_twice").s(7) | side.task("listing").s("after")))


@scenario
def too_many_retries(side: Side) -> Any:
    return get(call(side, side.task("retry_for_ever").s()))


@scenario
def automatic_retries(side: Side) -> Any:
    return get(call(side, side.task("autoretry").s()))


@scenario
def a_replaced_task(side: Side) -> Any:
    key = side.key()
    replaced = side.task("replace").s("task", 5)
    if side.app.conf.result_backend == "rpc://":  # Celery sends that result to the worker itself
        call(side, replaced | side.task("trace").s(key=key))
        return side.traced(key, 1)
    return get(call(side, replaced))


@scenario
def a_task_replaced_by_a_chain_in_a_chain(side: Side) -> Any:
    return get(call(side, side.task("replace").s("chain", 5) | side.task("add").s(100)))


@scenario
def a_task_replaced_by_a_group(side: Side) -> Any:
    return get(call(side, side.task("replace").s("group", 5)))


@scenario
def a_task_replaced_by_a_chord(side: Side) -> Any:
    return get(call(side, side.task("replace").s("chord", 5) | side.task("double").s()))


# -- stamps ---------------------------------------------------------------------------------------


@scenario
def stamps(side: Side) -> Any:
    signature = side.task("context").s()
    signature.stamp(customer="c-1", attempt=[1, 2])
    return get(call(side, signature))


@scenario
def stamps_in_a_chain(side: Side) -> Any:
    context = side.task("context")
    signature = context.s() | context.s() | context.s()
    signature.stamp(customer="c-1")
    return get(call(side, signature))


@scenario
def stamps_in_a_group(side: Side) -> Any:
    context = side.task("context")
    signature = group(context.s(), context.s() | context.s())
    signature.stamp(customer="c-1")
    return get(call(side, signature))


def _error(result: Any) -> tuple[str, str]:
    with pytest.raises(Exception) as caught:
        get(result)
    return type(caught.value).__name__, str(caught.value)
