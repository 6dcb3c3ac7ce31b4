"""Flower beside a worker with a relay: it sees the worker and calls tasks through the outbox."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.helpers import wait_for
from tests.services.private import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ecosystem.scene import Scene

pytestmark = [
    pytest.mark.postgresql, pytest.mark.rabbitmq, pytest.mark.redis, pytest.mark.library("flower"),
]  # fmt: skip

CALLS = 10


class Flower:
    def __init__(self, scene: Scene) -> None:
        self.port = free_port()
        scene.stage.environment["FLOWER_UNAUTHENTICATED_API"] = "true"
        scene.celery("flower", "flower", "--address=127.0.0.1", f"--port={self.port}")
        wait_for(lambda: self.get("/api/workers?refresh=1"), 40, scene.logs)

    def get(self, path: str) -> Any:
        with suppress(URLError, ConnectionError), urlopen(self._address(path), timeout=10) as page:
            return json.load(page)
        return None

    def calls(self, name: str, times: int = 1) -> bool:
        """Whether `times` calls of a task were all accepted."""
        return all(self._call(name) for _ in range(times))

    def _call(self, name: str) -> bool:
        body = json.dumps({"args": [name]}).encode()
        request = Request(self._address("/api/task/async-apply/note"), body)
        with suppress(URLError), urlopen(request, timeout=20):
            return True
        return False

    def _address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@pytest.fixture
def scene(scene_with: Callable[..., Scene]) -> Scene:
    scene = scene_with()
    scene.worker()
    return scene


def test_flower_sees_the_worker_and_calls_a_task(scene: Scene) -> None:
    flower = Flower(scene)
    assert list(flower.get("/api/workers?refresh=1")) == [scene.stage.workers[0].node]
    assert flower.calls("called by Flower")
    scene.wait_for_run("called by Flower")


def test_flower_calls_tasks_again_after_its_database_session_was_lost(scene: Scene) -> None:
    flower = Flower(scene)
    assert flower.calls("before", CALLS)
    scene.stage.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    # Each of Flower's threads has a session and may fail once.
    wait_for(lambda: flower.calls("after", CALLS), 40, scene.logs)
    scene.wait_for_run("after", CALLS)
