"""Real workers and `@once`: each effect once and each continuation right, however often a message
is delivered, and whenever a process dies."""

from __future__ import annotations

import re

import pytest
from kombu import Connection

from tests import helpers

APP = "tests.acceptance.project.once"
FLOWS = {"chains": 80, "chords": 60, "callbacks": 60}


def effects_of(chains=0, chords=0, callbacks=0, deadly_chains=0):
    """The effects of these flows, each once."""
    found = []
    for number in range(chains):
        found += [f"step chain-{number}{'.' * done}" for done in range(3)]
    for number in range(chords):
        parts = [f"chord-{number}-{part}" for part in range(3)]
        found += [f"step {part}" for part in parts]
        found += [f"collect {' '.join(f'{part}.' for part in parts)}"]
    for number in range(callbacks):
        found += [f"step callback-{number}{'.' * done}" for done in range(2)]
    for number in range(deadly_chains):
        flow = f"deadly-{number}"
        found += [f"deadly {flow}", f"deadly {flow}!", f"step {flow}!!"]
    return sorted(found)


@pytest.fixture
def once_stage(stage_with):
    """`once_stage("mysql")`: a stage with the table that tasks write to, and results in Redis."""
    stages = []

    def build(database):
        redis = helpers.require_service("redis")
        stage = stage_with(
            database,
            CELERY_TASK_IGNORE_RESULT=False,
            CELERY_RESULT_BACKEND=f"redis://{redis.host}:{redis.port}/13",
            CELERY_RESULT_EXPIRES=600,
            CELERY_WORKER_PREFETCH_MULTIPLIER=1,
        )
        stage.sql("CREATE TABLE effects (name VARCHAR(255))")
        stages.append(stage)
        return stage

    yield build
    for stage in stages:
        for worker in stage.workers:
            worker.process.end()
        stage.sql("DROP TABLE effects")


def effects(stage):
    return sorted(name for (name,) in stage.sql("SELECT name FROM effects"))


def messages(stage):
    with Connection(stage.broker) as connection:
        return connection.default_channel.queue_declare(stage.queue, passive=True).message_count


def wait_until_done(stage, expected, timeout=150):
    helpers.wait_for(
        lambda: set(expected) <= set(effects(stage)) and not stage.rows() and not messages(stage),
        timeout,
        lambda: (
            f"{len(set(expected) - set(effects(stage)))} of {len(expected)} effects are missing,"
            f" {stage.rows()} rows, {messages(stage)} messages\n{stage.logs()[-5000:]}"
        ),
        pause=0.2,
    )
    for worker in stage.workers:
        assert worker.stop() == 0
    assert messages(stage) == 0


@pytest.mark.timeout(200)
@pytest.mark.parametrize("database", ["postgres", "mysql", "sqlite"])
def test_two_hundred_flows_whose_messages_all_come_two_or_three_times(once_stage, database):
    stage = once_stage(database)
    for pool in ("prefork", "threads"):
        stage.worker(app=APP, pool=pool, concurrency=3, ACCEPTANCE_COPIES="1")
    stage.enqueue(task="begin", kwargs=FLOWS)
    expected = effects_of(**FLOWS)
    wait_until_done(stage, expected)
    assert effects(stage) == expected
    (duplicates,) = stage.sql("SELECT sum(duplicates) FROM celery_outbox_inbox")[0]
    assert duplicates > len(expected)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("database", ["postgres", "mysql", "sqlite"])
def test_fifty_kills_between_the_commit_and_the_continuation(once_stage, database):
    stage = once_stage(database)
    stage.worker(app=APP, concurrency=4)
    stage.enqueue(task="begin", kwargs={**dict.fromkeys(FLOWS, 0), "deadly_chains": 30})
    expected = effects_of(deadly_chains=30)
    wait_until_done(stage, expected)
    assert effects(stage) == expected
    killed = set(re.findall(r"pid:(\d+) exited with 'signal 9", stage.logs()))
    assert len(killed) >= 50
