"""Calls for later wait in the table: no worker holds them, none is repeated, each is on time."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from django.db import connections

from tests import helpers
from tests.acceptance.load import steady_load
from tests.chaos.workers import skewed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.acceptance.stage import Stage
    from tests.harness.servers import PrivateServer
    from tests.harness.workers import Worker

IMPATIENT = {
    "visibility_timeout": 3,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 1,
}
"""Redis delivers again what is not acknowledged within three seconds, and looks every second."""
COPIES = """
    INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, created_at, due_at, eta,
        retries, schema_version)
    SELECT task_id || n, task_name, args, kwargs, options, created_at, due_at, eta,
        retries, schema_version
    FROM celery_outbox, generate_series(2, {count}) AS n
"""


def redis_stage(stage_with: Callable[..., Stage], **settings: Any) -> Stage:
    stage = stage_with("postgres", "redis", **settings)
    options = {**stage._transport_options(), **IMPATIENT}
    stage.settings["CELERY_BROKER_TRANSPORT_OPTIONS"] = options
    return stage


def memory_of(worker: Worker) -> float:
    """Megabytes of the worker's main process, where the relay runs and etas would be kept."""
    return float(psutil.Process(worker.process.pid).memory_info().rss) / 1e6


def fill(stage: Stage, count: int) -> None:
    """That many calls for tomorrow."""
    stage.enqueue(1, countdown=86_400)
    stage.sql(COPIES.format(count=count))
    assert stage.rows() == count


def test_redis_delivers_five_calls_five_times(stage_with: Callable[..., Stage]) -> None:
    """With plain etas the same takes place twice: see the next test."""
    stage = redis_stage(stage_with)
    stage.worker()
    stage.worker()
    ids = stage.enqueue(5, countdown=8)
    stage.wait_until_ran(ids)
    stage.wait_until_empty()
    time.sleep(5)  # longer than the visibility timeout: nothing may come now
    assert sorted(stage.ran()) == sorted(ids)


def test_redis_repeats_them_where_workers_hold_them(stage_with: Callable[..., Stage]) -> None:
    """So that the test above shows something."""
    stage = redis_stage(stage_with)
    stage.worker()
    stage.worker()
    stage.client.conf.outbox_hold = None
    ids = stage.enqueue(5, countdown=8)
    helpers.wait_for(lambda: len(stage.ran()) > len(ids), 40, stage.logs)


def test_a_relay_that_hardly_polls_is_on_time_all_the_same(
    stage_with: Callable[..., Stage],
) -> None:
    stage = stage_with(CELERY_OUTBOX_IDLE_TIME=60)
    stage.worker(concurrency=1)
    stage.client.conf.outbox_idle_time = 60
    stage.wait_until_ran(stage.enqueue(1))
    late = {}
    for countdown in (0.3, 3, 9):
        (task_id,), due = stage.enqueue(1, countdown=countdown), time.monotonic() + countdown
        stage.wait_until_ran([task_id])
        late[countdown] = time.monotonic() - due
    assert max(late.values()) < 2, late
    assert min(late.values()) >= 0, late


def test_a_hundred_thousand_held_calls_take_no_memory_of_a_worker(stage: Stage) -> None:
    worker = stage.worker(concurrency=1)
    stage.wait_until_ran(stage.enqueue(50))
    idle = memory_of(worker)
    fill(stage, 100_000)
    stage.wait_until_ran(stage.enqueue(50))
    assert memory_of(worker) < idle + 10
    assert stage.rows("claimed_by IS NULL") == 100_000
    assert worker.complaints() == []


@pytest.mark.parametrize("database", ["postgres", "mysql"])
def test_a_restart_of_all_workers_changes_nothing(
    database: str, stage_with: Callable[..., Stage]
) -> None:
    stage = stage_with(database)
    workers = [stage.worker(concurrency=1) for _ in range(2)]
    ids, began = stage.enqueue(10, countdown=12), time.monotonic()
    workers[0].kill("SIGKILL")
    assert workers[1].stop() == 0
    stage.worker(concurrency=1)
    assert stage.rows("claimed_by IS NULL") == 10
    stage.wait_until_ran(ids)
    assert time.monotonic() - began >= 11.5
    stage.wait_until_empty()


@pytest.mark.parametrize(
    ("pool", "database"),
    [("prefork", "postgres"), ("threads", "mysql"), ("solo", "sqlite"), ("gevent", "postgres")],
)
def test_in_every_pool_calls_and_retries_for_later_run_once_and_not_early(
    pool: str, database: str, stage_with: Callable[..., Stage]
) -> None:
    stage = stage_with(database, CELERY_OUTBOX_HOLD_RETRIES=1)
    worker, began = stage.worker(pool=pool), time.monotonic()
    calls = stage.enqueue(3, countdown=2)
    retries = stage.enqueue(3, "again", args=(2,))
    nested = stage.enqueue(3, "later", args=(2,))
    helpers.wait_for(lambda: len(stage.ran()) >= 12, 30, stage.logs)
    assert time.monotonic() - began >= 2
    stage.wait_until_empty()
    assert set(calls + retries + nested) <= set(stage.ran())
    assert stage.twice(stage.ran()) == {}
    assert worker.complaints() == []


@pytest.mark.parametrize("database", ["postgres", "mysql"])
def test_a_revoke_against_relays_either_deletes_the_call_or_it_arrives(
    database: str, stage_with: Callable[..., Stage]
) -> None:
    stage = stage_with(database)
    for _ in range(2):
        stage.worker("--outbox-batch-size=3", concurrency=1)
    revoked: set[str] = set()
    committed: list[str] = []

    def revoke(ids: list[str]) -> None:
        for task_id in ids:
            replies = stage.client.control.revoke(task_id, reply=True, timeout=0.01) or []
            if any("database" in reply for reply in replies):
                revoked.add(task_id)
        connections.close_all()

    alias = stage.aliases["default"]
    stage.client.conf.outbox_databases = [alias]
    for _ in range(15):
        ids = stage.send_parcels(40)
        committed += ids
        threads = [threading.Thread(target=revoke, args=(ids[n::-2],)) for n in (38, 39)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    stage.wait_until_empty()
    arrived = stage.arrived()
    assert stage.twice(arrived) == {}
    assert revoked.isdisjoint(arrived)
    assert revoked | set(arrived) == set(committed)
    assert revoked
    assert arrived


@pytest.mark.parametrize("skew", ["+3600", "-3600"])
def test_a_wrong_clock_of_worker_and_caller_changes_nothing(
    skew: str, stage_with: Callable[..., Stage]
) -> None:
    stage = stage_with()
    stage.worker(**skewed(skew))
    began = time.monotonic()
    called = stage.enqueue(2, countdown=3)
    ((eta,),) = stage.sql("SELECT now() + interval '3 seconds'")
    called += stage.enqueue(2, eta=eta)
    (nested,) = stage.enqueue(1, "later", args=(3,))  # the caller's clock is the worker's
    stage.wait_until_ran([nested])
    assert len(stage.ran()) == 1
    helpers.wait_for(lambda: len(stage.ran()) >= 6, 20, stage.logs)
    assert 3 <= time.monotonic() - began < 6
    stage.wait_until_ran(called)


def test_the_broker_may_be_away_when_calls_fall_due(
    stage_with: Callable[..., Stage], private_server: Callable[[str], PrivateServer]
) -> None:
    broker = private_server("rabbitmq")
    stage = stage_with("postgres", f"amqp://guest:guest@127.0.0.1:{broker.port}//")
    stage.worker(concurrency=1)
    ids = stage.enqueue(5, countdown=4)
    revoked = stage.enqueue(1, countdown=5)
    expired = stage.enqueue(1, countdown=4, expires=6)
    broker.stop()
    try:
        stage.client.conf.outbox_databases = [stage.aliases["default"]]
        stage.client.control.revoke(revoked)
        helpers.wait_for(lambda: stage.rows("eta < now() - interval '3 seconds'") == 6, 30)
    finally:
        broker.start()
    stage.wait_until_ran(ids, timeout=90)
    stage.wait_until_empty()
    assert sorted(stage.ran()) == sorted(ids)
    assert expired[0] not in stage.ran()


def test_commands_list_cancel_and_send_now(stage: Stage) -> None:
    stage.worker(concurrency=1)
    one, two = stage.enqueue(2, countdown=3600)
    listed = stage.celery("outbox", "scheduled", "--task-name", "rec*")
    assert one in listed
    assert two in listed
    others = stage.celery("outbox", "scheduled", "--task-name", "other")
    assert others == "nothing is scheduled for other; * and ? are wildcards\n"
    assert f"{one}: cancelled" in stage.celery("outbox", "cancel", one)
    assert f"{two}: due now" in stage.celery("outbox", "send-now", two)
    stage.wait_until_ran([two])
    third, fourth = (
        stage.celery("call", "record", "--countdown", "3600").strip() for _ in range(2)
    )
    stage.celery("control", "revoke", third)
    assert [fourth] == [task_id for (task_id,) in stage.sql("SELECT task_id FROM celery_outbox")]
    assert stage.ran() == [two]


def test_a_process_that_dies_between_commit_and_hook_loses_no_call_on_commit(stage: Stage) -> None:
    """The row of `delay_on_commit()` is in the transaction: there is no "between" for it."""
    stage.worker(concurrency=1)
    stage.enqueue(1, "die_after_commit", args=("survivor",))
    helpers.wait_for(lambda: "survivor" in stage.ran_names(), 30, stage.logs)


def test_under_load_with_relays_killed_held_calls_run_once_and_on_time(stage: Stage) -> None:
    workers = [stage.worker(concurrency=1) for _ in range(3)]
    with steady_load(stage):
        ids, began = stage.enqueue(50, countdown=6), time.monotonic()
        workers[0].kill("SIGKILL")
        stage.worker(concurrency=1)
        stage.wait_until_ran(ids, timeout=60)
        assert 6 <= time.monotonic() - began < 10
    stage.wait_until_empty()
    assert stage.twice(stage.ran()) == {}
