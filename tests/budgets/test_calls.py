"""How much Python runs per message, as function calls: a proxy for CPU time that needs no clock.

The bounds are a tenth or two above what was counted when they were written. Who needs more should
know why, and then raise them.
"""

from __future__ import annotations

import cProfile
import gc
import pstats

import pytest
from celery import Celery
from django.db import transaction

from tests.budgets.conftest import enqueue, needs_batches

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
