"""django-structlog: the task's log lines have the id of the request that called it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ecosystem.scene import Scene


@pytest.mark.postgresql
@pytest.mark.rabbitmq
@pytest.mark.redis
@pytest.mark.library("django-structlog")
def test_a_task_has_the_id_of_its_request(scene_with: Callable[..., Scene]) -> None:
    project = "tests.ecosystem.project.logged"
    scene = scene_with(
        project,
        apps=("django_structlog",),
        MIDDLEWARE=["django_structlog.middlewares.RequestMiddleware"],
        DJANGO_STRUCTLOG_CELERY_ENABLED=True,
        ROOT_URLCONF=project,
        ALLOWED_HOSTS=["*"],
    )
    scene.worker()
    found = scene.script("""
from django.test import Client
answer(Client().get("/").json()["request_id"])
""")
    assert found != "None"
    scene.wait_for_run(found)
