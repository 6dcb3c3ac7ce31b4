"""Django's own tasks with Celery behind them: `enqueue()` is part of the transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ecosystem.scene import Scene


@pytest.mark.postgresql
@pytest.mark.rabbitmq
@pytest.mark.redis
@pytest.mark.library("django-tasks-celery")
def test_what_is_rolled_back_does_not_run(scene_with: Callable[..., Scene]) -> None:
    project = "tests.ecosystem.project.tasks"
    options = {"CELERY_APP": f"{project}.app"}
    backend = {"BACKEND": "django_tasks_celery.CeleryBackend", "OPTIONS": options}
    scene = scene_with(project, TASKS={"default": backend})
    scene.worker()
    scene.script(f"""
from {project} import leave
try:
    with transaction.atomic():
        leave.enqueue("rolled back")
        raise LookupError
except LookupError:
    pass
with transaction.atomic():
    leave.enqueue("committed")
""")
    scene.wait_for_run("committed")
    assert scene.stage.ran_names() == ["committed"]
