"""Children are born and die while the relay works: no session and no channel of it is damaged."""

from __future__ import annotations

import os
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from tests import helpers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.acceptance.stage import Stage

ROUNDS = int(os.environ.get("ACCEPTANCE_FORK_ROUNDS", "12"))
"""Eight children are born in each."""


@pytest.mark.parametrize(("database", "broker"), [("postgres", "rabbitmq"), ("mysql", "redis")])
def test_a_new_child_for_every_task(
    database: str, broker: str, stage_with: Callable[..., Stage]
) -> None:
    stage = stage_with(database, broker)
    worker = stage.worker("--max-tasks-per-child=1", "--outbox-batch-size=20")
    first_child = worker.children()
    ids: list[str] = []
    parcels: list[str] = []
    for _ in range(ROUNDS):
        ids += stage.enqueue(8)
        parcels += stage.send_parcels(60)
        stage.wait_until_nearly_all_ran(ids, missing=8)
    stage.wait_until_ran(ids, 60)
    stage.wait_until_empty()
    assert worker.children() != first_child
    assert sorted(stage.arrived()) == sorted(parcels)
    assert worker.complaints() == []
    assert stage.counters(worker)["published"] == len(ids) + len(parcels)
    assert stage.counters(worker).get("errors", 0) == 0


def test_autoscale_and_killed_children(stage: Stage) -> None:
    worker = stage.worker("--autoscale=4,1", "--outbox-batch-size=20")
    ids: list[str] = []
    parcels: list[str] = []
    for _ in range(6):
        stage.enqueue(1, "die")
        ids += stage.enqueue(30)
        parcels += stage.send_parcels(100)
        stage.wait_until_nearly_all_ran(ids, missing=30)
    stage.wait_until_ran(ids, 60)
    stage.wait_until_empty()
    assert sorted(stage.arrived()) == sorted(parcels)
    assert worker.lines("WorkerLostError")
    assert worker.lines("relay_error", "broker_unavailable", "publish_failed", "fenced") == []


def test_a_statement_that_hangs_does_not_slow_the_worker_s_forks(stage: Stage) -> None:
    worker = stage.worker("--max-tasks-per-child=1")

    def seconds_for_tasks() -> float:
        begin = time.monotonic()
        stage.wait_until_ran([stage.send_directly() for _ in range(20)], 60)
        return time.monotonic() - begin

    undisturbed = seconds_for_tasks()
    migration = connections.create_connection(stage.aliases["default"])
    with closing(migration), transaction_on(migration) as cursor:
        cursor.execute("LOCK TABLE celery_outbox IN ACCESS EXCLUSIVE MODE")
        helpers.wait_for(lambda: waits_for_a_lock(cursor), 10, worker.logs)
        with_a_hanging_relay = seconds_for_tasks()
    assert with_a_hanging_relay < undisturbed * 1.5 + 4, "each fork waited for the statement"
    stage.wait_until_ran(stage.enqueue(3))


def waits_for_a_lock(cursor: Any) -> bool:
    cursor.execute(
        "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)"
        " WHERE NOT granted AND datname = current_database()"
    )
    return bool(cursor.fetchone()[0])


@contextmanager
def transaction_on(connection: Any) -> Iterator[Any]:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        yield cursor
        cursor.execute("ROLLBACK")
