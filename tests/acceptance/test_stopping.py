"""Workers end: nothing is lost, and only kill -9 may send a batch twice."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from django_integration.store import DjangoStore
from tests import helpers
from tests.acceptance.load import steady_load
from tests.harness.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.acceptance.stage import Stage

SHORT_LEASE = ("--outbox-stale-timeout=4", "--outbox-send-timeout=3")
SOFT = {
    "CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT": 1,
    "CELERY_WORKER_ENABLE_SOFT_SHUTDOWN_ON_IDLE": True,
}


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    service = helpers.require_service("rabbitmq")
    with Proxy(service.host, service.port) as proxy:
        yield proxy


@pytest.fixture
def second_proxy() -> Iterator[Proxy]:
    service = helpers.require_service("rabbitmq")
    with Proxy(service.host, service.port) as proxy:
        yield proxy


@pytest.mark.parametrize(
    ("signal", "settings"),
    [("SIGTERM", {}), ("SIGQUIT", {}), ("SIGQUIT", SOFT)],
    ids=["warm", "cold", "soft"],
)
def test_stop_under_load(
    signal: str, settings: dict[str, Any], stage_with: Callable[..., Stage]
) -> None:
    stage = stage_with(**settings)
    worker = stage.worker("--outbox-batch-size=10")
    with steady_load(stage) as ids:
        helpers.wait_for(lambda: len(ids) > 300 and stage.rows() < 100, 20, stage.logs)
        begin = time.monotonic()
        stage.stop(worker, signal)
        assert time.monotonic() - begin < 15
        ids.extend(stage.send_parcels(1))
    left = {row[0] for row in stage.sql("SELECT task_id FROM celery_outbox")}
    arrived = stage.arrived()
    assert stage.twice(arrived) == {}
    assert set(arrived) | left == set(ids)
    assert set(arrived) & left == set()
    # Claimable at once: another relay gets all of them, and none of them lost a retry.
    store = DjangoStore(stage.aliases["default"])
    claimed = store.claim(len(ids), 60, "another relay")
    store.close()
    assert {row.task_id for row in claimed} == left
    assert {row.retries for row in claimed} == {0}
    assert worker.complaints() == []


def test_a_signal_during_startup(stage: Stage) -> None:
    stage.send_parcels(10)
    worker = stage.prepare()
    worker.process.start()
    worker.wait_for("celery_outbox_relay_started")
    worker.stop("SIGTERM", 20)
    left = stage.rows("claimed_by IS NULL AND retries = 0")
    assert stage.rows() == left
    assert len(stage.arrived()) + left == 10


def test_what_the_last_task_enqueues_during_a_warm_stop_is_published(stage: Stage) -> None:
    worker = stage.worker()
    stage.enqueue(1, "enqueue_when_told", kwargs={"name": "last words"})
    helpers.wait_for(lambda: stage.redis.llen(f"{stage.prefix}:waiting") == 1, 20)
    worker.kill("SIGTERM")
    worker.wait_for("Warm shutdown")
    # The consumer is gone, and the pool still waits for its task.
    helpers.wait_for(lambda: stage.consumers() == 0, 20, "the worker still consumes")
    stage.redis.rpush(f"{stage.prefix}:go", "go")
    assert worker.wait() == 0
    assert stage.rows() == 0
    stage.worker(relay=False)
    helpers.wait_for(lambda: "last words" in stage.ran_names(), 20)


def test_kill_9_in_the_middle_of_a_batch_repeats_at_most_that_batch(
    stage: Stage, proxy: Proxy
) -> None:
    first = stage.worker("--outbox-batch-size=200", *SHORT_LEASE, settings=stage.behind(proxy.port))
    stage.send_parcels(1)
    stage.wait_until_empty()
    assert len(stage.arrived()) == 1
    proxy.stall()
    ids = stage.send_parcels(600)
    helpers.wait_for(lambda: stage.rows("claimed_by IS NOT NULL") >= 200, 20)
    first.kill("SIGKILL")
    proxy.resume()  # what was on its way arrives, and was not settled
    stage.worker(*SHORT_LEASE)
    stage.wait_until_empty()
    arrived = stage.arrived()
    assert set(arrived) == set(ids)
    assert len(arrived) - len(ids) <= 200, "more than that batch came twice"


def test_a_relay_that_slept_through_its_lease_changes_nothing(
    stage: Stage, proxy: Proxy, second_proxy: Proxy
) -> None:
    sleeper = stage.worker(*SHORT_LEASE, settings=stage.behind(proxy.port))
    other = stage.worker("--outbox-send-timeout=30", settings=stage.behind(second_proxy.port))
    stage.ask(other, "outbox_pause")
    stage.send_parcels(1)
    stage.wait_until_empty()
    proxy.stall()
    ids = stage.send_parcels(50)
    helpers.wait_for(lambda: stage.rows("claimed_by IS NOT NULL") == 50, 20)
    (first,) = stage.holders()
    sleeper.kill("SIGSTOP")
    # Another relay takes the rows over, and is slow as well: its lease is what must be respected.
    second_proxy.stall()
    stage.tell(other, "outbox_resume")
    helpers.wait_for(lambda: stage.holders() not in ([], [first]), 20)
    (second,) = stage.holders()
    sleeper.kill("SIGCONT")
    sleeper.wait_for("celery_outbox_fenced")
    assert stage.holders() == [second]
    assert stage.rows(f"claimed_by = '{second}'") == 50
    proxy.resume()
    second_proxy.resume()
    stage.wait_until_empty()
    assert set(ids) <= set(stage.arrived())
