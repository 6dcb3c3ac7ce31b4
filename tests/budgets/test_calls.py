"""How much Python runs per message, as function calls: a proxy for CPU time that needs no clock.

The bounds are a tenth or two above what was counted when they were written. Who needs more should
know why, and then raise them.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import sys
from pathlib import Path

import pytest
from celery import Celery
from django.db import transaction

from tests.budgets.conftest import enqueue, needs_batches
from tests.services import ROOT

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.rabbitmq,
    pytest.mark.usefixtures("postgresql"),
]

RELAY_TO_RABBITMQ = 200
RELAY_TO_REDIS = 120
AGAINST_DIRECT = 0.5
BULK_AGAINST_SINGLE = 0.87
COLLECTIONS = 4


def calls(function, *args):
    """Function calls, C functions included, that running it takes."""
    profile = cProfile.Profile()
    profile.runcall(function, *args)
    return pstats.Stats(profile).total_calls


def our_functions(function, *args):
    """Names of those of our functions that running it calls."""
    profile = cProfile.Profile()
    profile.runcall(function, *args)
    functions = pstats.Stats(profile).stats
    return {
        (Path(file).name, name)
        for file, _, name in functions
        if file.startswith((f"{ROOT}/celery_outbox_steps", f"{ROOT}/django_integration"))
    }


def single(task, count):
    for number in range(count):
        task.delay(number)


def bulk(task, count):
    with task.app.outbox_bulk():
        single(task, count)


def per_message(relay, app, count):
    enqueue(app, count)
    return calls(relay.run_once) / count


@pytest.mark.parametrize(
    ("which", "bound"),
    [
        ("app", RELAY_TO_RABBITMQ),
        pytest.param("redis_app", RELAY_TO_REDIS, marks=[pytest.mark.redis, needs_batches]),
    ],
)
def test_relaying_a_message_takes_few_calls_and_no_more_in_a_large_batch(
    request, which, bound, relay_of
):
    app = request.getfixturevalue(which)
    relay = relay_of(app)
    per_message(relay, app, 100)
    small, large = (per_message(relay, app, count) for count in (100, 500))
    assert large <= bound
    assert large <= small * 1.1


@pytest.mark.redis
@needs_batches
def test_messages_to_redis_are_not_kept_for_the_garbage_collector(redis_app, relay_of):
    """Kept until the batch is sent, they would make it look through everything that there is."""
    relay = relay_of(redis_app)
    per_message(relay, redis_app, 100)
    enqueue(redis_app, 500)
    gc.collect()
    before = collections()
    relay.run_once()
    assert collections() - before <= COLLECTIONS


def collections():
    return sum(generation["collections"] for generation in gc.get_stats())


def test_a_call_takes_fewer_calls_than_a_direct_one(app, make_app):
    direct = make_app(cls=Celery).tasks["budgets.noop"]
    stored = app.tasks["budgets.noop"]
    single(direct, 5)
    with transaction.atomic():
        single(stored, 5)
        assert calls(single, stored, 100) <= AGAINST_DIRECT * calls(single, direct, 100)


def test_excluded_names_cost_a_call_nothing_by_their_number(app):
    task = app.tasks["budgets.noop"]
    with transaction.atomic():
        app.conf.outbox_exclude_tasks = ["other.task"]
        single(task, 5)
        few = calls(single, task, 20)
        app.conf.outbox_exclude_tasks = [f"other.task_{number}" for number in range(100)]
        single(task, 5)
        assert calls(single, task, 20) <= few * 1.01


def test_a_bulk_takes_fewer_calls(app):
    task = app.tasks["budgets.noop"]
    with transaction.atomic():
        bulk(task, 5)
        assert calls(bulk, task, 100) <= BULK_AGAINST_SINGLE * calls(single, task, 100)


@pytest.mark.parametrize("exclude", [(), ["budgets.*"]], ids=["stored", "excluded"])
def test_a_call_runs_nothing_of_the_headers_that_the_project_did_not_ask_for(app, exclude):
    app.conf.outbox_exclude_tasks = exclude
    task = app.tasks["budgets.noop"]
    with transaction.atomic():
        single(task, 5)
        files = {file for file, _ in our_functions(single, task, 5)}
        assert files.isdisjoint({"headers.py", "ancestors.py"})
        app.conf.outbox_lineage = True
        single(task, 5)
        assert "headers.py" in {file for file, _ in our_functions(single, task, 5)}


def test_a_batch_runs_nothing_for_tracing_that_the_project_did_not_set_up(
    app, relay_of, monkeypatch
):
    for library in ("trace", "instrumentation.utils"):
        monkeypatch.delitem(sys.modules, f"opentelemetry.{library}", raising=False)
    relay = relay_of(app)
    enqueue(app, 5)
    relay.run_once()
    enqueue(app, 5)
    called = our_functions(relay.run_once)
    assert ("tick.py", "run_once") in called
    assert "opentelemetry.py" not in {file for file, _ in called}
    assert {("structlog.py", "on_opened"), ("structlog.py", "context_header")}.isdisjoint(called)
