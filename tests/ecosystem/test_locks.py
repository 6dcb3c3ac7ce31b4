"""Libraries that take a lock at call time: what a rollback does to it, and the way that is safe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ecosystem.scene import Scene

pytestmark = [pytest.mark.postgresql, pytest.mark.rabbitmq, pytest.mark.redis]

PROJECT = "tests.ecosystem.project.locks"
TASKS = [
    pytest.param("singleton", marks=pytest.mark.library("celery-singleton")),
    pytest.param("once", marks=pytest.mark.library("celery-once")),
]
DIRECTLY = "{task}.delay({name!r})"
ON_COMMIT = "transaction.on_commit(lambda: {task}.delay({name!r}))"
ROLLED_BACK_THEN_COMMITTED = f"""
from {PROJECT} import {{task}}
try:
    with transaction.atomic():
        {{call}}
        raise LookupError
except LookupError:
    pass
with transaction.atomic():
    {{call}}
"""


@pytest.fixture
def scene(scene_with: Callable[..., Scene]) -> Scene:
    scene = scene_with(PROJECT)
    scene.worker()
    return scene


def call_twice(scene: Scene, task: str, way: str) -> None:
    """The same call, first rolled back, then committed; and another one, to wait for."""
    call = way.format(task=task, name="same")
    scene.script(ROLLED_BACK_THEN_COMMITTED.format(task=task, call=call))
    scene.script(f"from {PROJECT} import {task}\n{task}.delay('other')")
    scene.wait_for_run("other")


@pytest.mark.parametrize("task", TASKS)
def test_a_rollback_leaves_the_lock(scene: Scene, task: str) -> None:
    call_twice(scene, task, DIRECTLY)
    assert scene.stage.ran_names() == ["other"]


@pytest.mark.parametrize("task", TASKS)
def test_called_in_on_commit_a_rollback_takes_no_lock(scene: Scene, task: str) -> None:
    call_twice(scene, task, ON_COMMIT)
    assert sorted(scene.stage.ran_names()) == ["other", "same"]
