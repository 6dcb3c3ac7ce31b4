"""Results in the project's own database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ecosystem.scene import Scene

pytestmark = [
    pytest.mark.postgresql, pytest.mark.rabbitmq, pytest.mark.redis,
    pytest.mark.library("django-celery-results"),
]  # fmt: skip


@pytest.fixture
def scene(scene_with: Callable[..., Scene]) -> Scene:
    scene = scene_with(
        apps=("django_celery_results",),
        CELERY_RESULT_BACKEND="django-db",
        CELERY_RESULT_EXTENDED=True,
        CELERY_TASK_IGNORE_RESULT=False,
    )
    scene.migrate()
    return scene


def test_a_result_is_stored_with_the_tasks_name(scene: Scene) -> None:
    scene.worker()
    found = scene.script("""
from django_celery_results.models import TaskResult
from tests.ecosystem.project.app import note
with transaction.atomic():
    result = note.delay("stored")
result.get(timeout=30)
answer(list(TaskResult.objects.filter(task_id=result.id).values_list("task_name", "status")))
""")
    assert found == [["note", "SUCCESS"]]


def test_a_chord_that_is_called_in_a_transaction_ends(scene: Scene) -> None:
    scene.worker()
    scene.script("""
from tests.ecosystem.project.app import call_chord
call_chord("a", "b", "c")
""")
    scene.wait_for_run("a+b+c")
