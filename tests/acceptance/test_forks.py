"""Children are born and die while the relay works: no session and no channel of it is damaged."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

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
