"""One worker per app, shared by all scenarios of a pool and a result backend."""

from __future__ import annotations

import json
import sys
import uuid
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import redis
from django.db import connection, connections, transaction
from kombu import Connection

from tests import helpers
from tests.canvas.project import KINDS, build
from tests.harness.databases import installed, redis_url
from tests.harness.processes import LocalProcess, clean_environment
from tests.proj.fixtures import databases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.harness.databases import Databases

__all__ = ["databases"]

MATRIX = [("prefork", "redis"), ("threads", "redis"), ("prefork", "rpc"), ("threads", "rpc")]


@dataclass
class Side:
    """One of the two: an app in this process, and a worker of the same app."""

    kind: str
    app: Any
    traces: Any
    logs: Callable[[], str]

    def calling(self) -> AbstractContextManager[Any]:
        """The block for calls: a transaction with the outbox, none with plain Celery."""
        return transaction.atomic() if self.kind == "outbox" else nullcontext()

    def task(self, name: str) -> Any:
        return self.app.tasks[name]

    def key(self) -> str:
        return f"canvas:{uuid.uuid4()}"

    def traced(self, key: str, count: int) -> list[str]:
        """What tasks left under a key, once there are `count` entries."""
        helpers.wait_for(lambda: self.traces.llen(key) >= count, 20, self.logs)
        return sorted(self.traces.lrange(key, 0, -1))


@pytest.fixture(scope="module", params=MATRIX, ids="-".join)
def both(
    request: pytest.FixtureRequest,
    databases: Databases,
    tmp_path_factory: pytest.TempPathFactory,
    django_db_blocker: Any,
) -> Iterator[list[Side]]:
    """The two sides, with their workers running."""
    pool, backend = request.param
    for name in ("postgresql", "rabbitmq", "redis"):
        helpers.require_service(name)
    settings = databases.get("postgresql", "canvas")
    path = tmp_path_factory.mktemp("canvas")
    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())
        stack.enter_context(installed("default", settings))
        sides = [stack.enter_context(_side(kind, pool, backend, settings, path)) for kind in KINDS]
        for side in sides:
            helpers.wait_for(lambda side=side: " ready." in side.logs(), 60, side.logs)
        yield sides
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM celery_outbox")
            left = cursor.fetchone()[0]
        connections.close_all()
    assert left == 0


@contextmanager
def _side(
    kind: str, pool: str, backend: str, database: dict[str, Any], path: Path
) -> Iterator[Side]:
    conf = _conf(kind, backend)
    environment = clean_environment(CANVAS_APP=kind, CANVAS_CONF=json.dumps(conf))
    relay: list[str] = []
    if kind == "outbox":
        wanted = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")
        environment["CANVAS_DATABASE"] = json.dumps({name: database[name] for name in wanted})
        environment["DJANGO_SETTINGS_MODULE"] = "tests.canvas.settings"
        relay = ["--outbox-relay"]
    command = [
        sys.executable, "-m", "celery", "-A", "tests.canvas.project", "worker", "-l", "INFO",
        "-P", pool, "-c", "2", "-n", f"{conf['task_default_queue']}@%h",
        "--without-gossip", "--without-mingle", *relay,
    ]  # fmt: skip
    worker = LocalProcess(command, name=kind, cwd=path, env=environment)
    worker.start()
    app, traces = build(kind, conf), redis.Redis.from_url(conf["canvas_traces"])
    try:
        yield Side(kind, app, traces, lambda: worker.logs().decode(errors="replace"))
    finally:
        worker.stop(15)
        _forget(conf)
        traces.close()
        app.close()


def _conf(kind: str, backend: str) -> dict[str, Any]:
    traces = redis_url(9)
    return {
        "broker_url": helpers.require_service("rabbitmq").url,
        "result_backend": traces if backend == "redis" else "rpc://",
        "task_default_queue": f"canvas-{kind}-{uuid.uuid4().hex[:8]}.tasks",
        "canvas_traces": traces,
        "result_extended": True,
        "broker_connection_retry_on_startup": True,
        "redis_retry_on_timeout": True,
        "result_expires": 600,
        "outbox_hold_retries": 0.3,
    }


def _forget(conf: dict[str, Any]) -> None:
    with Connection(conf["broker_url"]) as connection:
        connection.default_channel.queue_delete(conf["task_default_queue"])
        connection.default_channel.exchange_delete(conf["task_default_queue"])
