"""The promise itself: committed → runs, rolled back → never, and only where the flag says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from tests import helpers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.acceptance.conftest import Databases
    from tests.acceptance.stage import Stage


def test_committed_runs_and_rolled_back_never_does(stage: Stage) -> None:
    worker = stage.worker()
    alias = stage.aliases["default"]
    with transaction.atomic(using=alias):
        ghost = stage.client.send_task("record", outbox_using=alias).id
        transaction.set_rollback(True, using=alias)
    ids = stage.enqueue(20)
    stage.wait_until_ran(ids)
    stage.wait_until_empty()
    assert ghost not in stage.ran()
    assert worker.complaints() == []


def test_only_a_worker_with_the_flag_or_its_variable_relays(stage: Stage) -> None:
    bystander = stage.worker(relay=False)
    waiting = stage.enqueue(3)
    direct = stage.send_directly()
    stage.wait_until_ran([direct])
    assert stage.rows("claimed_by IS NULL") == 3
    assert "celery_outbox" not in bystander.logs()
    stage.worker(relay=False, CELERY_WORKER_OUTBOX_RELAY="1")
    stage.wait_until_ran(waiting)


def test_workers_share_the_rows_and_publish_none_twice(stage: Stage) -> None:
    flags = ("--outbox-batch-size=50", "--outbox-relays=4")
    workers = [stage.worker(*flags, concurrency=1) for _ in range(2)]
    ids = stage.send_parcels(1500)
    stage.wait_until_empty()
    workers += [stage.worker(*flags, concurrency=1) for _ in range(2)]
    before = [stage.counters(worker)["published"] for worker in workers]
    ids += stage.send_parcels(3000)
    stage.wait_until_empty()
    after = [stage.counters(worker)["published"] for worker in workers]
    assert sorted(stage.arrived()) == sorted(ids)
    assert sum(after) == 4500
    assert min(before[:2]) > 0
    assert all(later > earlier for earlier, later in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("pool", "database", "broker"),
    [
        ("solo", "sqlite", "rabbitmq"),
        ("threads", "mysql", "rabbitmq"),
        ("gevent", "postgres", "redis"),
    ],
)
def test_every_pool(
    pool: str, database: str, broker: str, stage_with: Callable[..., Stage]
) -> None:
    stage = stage_with(database, broker)
    worker = stage.worker(pool=pool)
    ids = stage.enqueue(5, "enqueue", kwargs={"count": 5})
    stage.wait_until_ran(ids)
    helpers.wait_for(lambda: len(stage.ran()) == 30, 20, lambda: str(stage.ran_names()))
    stage.wait_until_empty()
    assert worker.stop() == 0
    assert worker.lines("celery_outbox_relay_stopped")
    assert worker.complaints() == []
    assert stage.twice(stage.ran()) == {}


def test_one_relay_per_database(stage_with: Callable[..., Stage], databases: Databases) -> None:
    aliases = {
        "default": databases.make("postgres"),
        "orders": databases.make("postgres", suffix="_orders"),
    }
    stage = stage_with(aliases=aliases, CELERY_OUTBOX_DATABASES=["default", "orders"])
    worker = stage.worker()
    ids = stage.enqueue(5) + stage.enqueue(5, database="orders")
    stage.wait_until_ran(ids)
    relays = stage.ask(worker, "outbox")["relays"]
    assert {relay["database"]: relay["counters"]["published"] for relay in relays} == {
        "default": 5,
        "orders": 5,
    }
    assert worker.stop() == 0


def test_beat_in_the_same_worker(stage_with: Callable[..., Stage]) -> None:
    schedule = {"tick": {"task": "record", "schedule": 0.5, "args": ["from beat"]}}
    stage = stage_with(CELERY_BEAT_SCHEDULE=schedule)
    worker = stage.worker("-B", f"--schedule={stage.path / 'beat'}")
    helpers.wait_for(lambda: stage.ran_names().count("from beat") > 3, 30, stage.logs)
    assert worker.stop() == 0
    assert worker.complaints() == []


def test_celery_multi_and_its_detached_worker(stage: Stage) -> None:
    name, log = f"{stage.prefix}-multi", stage.path / "multi.log"
    where = [f"--pidfile={stage.path / 'multi.pid'}", f"--logfile={log}"]
    stage.celery("multi", "start", name, *where, "-l", "INFO", "-c", "1", "--outbox-relay")
    try:
        stage.wait_until_ran(stage.enqueue(5))
    finally:
        stage.celery("multi", "stopwait", name, *where)
    assert "celery_outbox_relay_stopped" in log.read_text()


def test_plain_celery_app_with_a_store_of_its_own(stage: Stage) -> None:
    stage.environment.update(
        ACCEPTANCE_BROKER=stage.broker,
        ACCEPTANCE_QUEUE=stage.queue,
        ACCEPTANCE_PARCELS=stage.parcels,
    )
    assert stage.arrived() == []  # and the queue exists from now on
    worker = stage.worker(app="tests.acceptance.project.plain")
    arrived: list[Any] = []
    helpers.wait_for(lambda: arrived.extend(stage.arrived()) or len(arrived) == 3, 20)
    assert sorted(arrived) == ["plain-0", "plain-1", "plain-2"]
    assert worker.stop() == 0


def test_a_hostile_row_goes_to_the_dead_letters_and_stops_nobody_else(stage: Stage) -> None:
    ids = stage.enqueue(40)
    hostile = {
        ids[7]: "options = '{'",
        ids[19]: "options = '[]', payload = NULL",
        ids[23]: f"options = '{'[' * 100_000}'",
        ids[31]: """options = '{"headers": 1, "properties": {}}'""",
    }
    for task_id, damage in hostile.items():
        stage.sql(f"UPDATE celery_outbox SET {damage} WHERE task_id = '{task_id}'")
    stage.worker()
    stage.wait_until_ran([each for each in ids if each not in hostile])
    stage.wait_until_empty()
    letters = dict(stage.dead_letters())
    assert set(letters) == set(hostile)
    assert all("EnvelopeError" in reason for reason in letters.values())
