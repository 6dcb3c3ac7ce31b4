"""The same tasks on plain Celery and on OutboxCelery, for the test and for its workers.

The worker's app comes from the environment: CANVAS_APP (plain or outbox) and CANVAS_CONF (JSON).
"""

from __future__ import annotations

import json
import os
from typing import Any

import redis
from celery import Celery, chord, group

from celery_outbox_steps import OutboxRelayStep
from django_integration import OutboxCelery

KINDS: dict[str, type[Celery]] = {"plain": Celery, "outbox": OutboxCelery}


def build(kind: str, conf: dict[str, Any]) -> Any:
    """An app with all the tasks."""
    app = KINDS[kind]("canvas", set_as_current=False)
    app.conf.update(conf)
    if kind == "outbox":
        app.steps["worker"].add(OutboxRelayStep)
    _add_arithmetic(app)
    _add_observers(app)
    _add_troublemakers(app)
    _add_retries(app)
    return app


def _add_arithmetic(app: Any) -> None:
    @app.task(name="add", shared=False)
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(name="total", shared=False)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(name="double", shared=False)
    def double(x: int) -> int:
        return 2 * x

    @app.task(name="listing", shared=False)
    def listing(*values: Any) -> list[Any]:
        return list(values)


def _add_observers(app: Any) -> None:
    @app.task(name="trace", bind=True, shared=False)
    def trace(self: Any, *values: Any, key: str) -> None:
        """Leave a trace: callbacks have no result to wait for."""
        with redis.Redis.from_url(app.conf.canvas_traces) as client:
            client.rpush(key, json.dumps(values, default=str))

    @app.task(name="trace_error", shared=False)
    def trace_error(request: Any, error: Any, traceback: Any, key: str) -> None:
        with redis.Redis.from_url(app.conf.canvas_traces) as client:
            client.rpush(key, f"{request.task}: {error!r}, traceback: {bool(traceback)}")

    @app.task(name="context", bind=True, shared=False)
    def context(self: Any, *_: Any) -> dict[str, Any]:
        """What a task knows of its place in the canvas, without the random parts."""
        request = self.request
        return {
            "root": request.root_id == request.id,
            "parent": request.parent_id is not None,
            "group": request.group is not None,
            "group_index": request.group_index,
            "retries": request.retries,
            "priority": request.delivery_info["priority"],
            "queue": request.delivery_info["routing_key"].rpartition(".")[2],
            # A held message has the time in a header of the outbox: see the fidelity suite.
            "eta": bool(request.eta or request.get("outbox_eta")),
            "expires": request.expires is not None,
            "timelimit": request.timelimit,
            "shadow": request.shadow,
            "stamps": request.stamps,
            "stamped_headers": sorted(request.stamped_headers or []),
            "headers": (request.headers or {}).get("tenant"),
            "argsrepr": request.argsrepr,
        }


def _add_troublemakers(app: Any) -> None:
    @app.task(name="fail", shared=False)
    def fail(*_: Any) -> None:
        raise ValueError("on purpose")

    @app.task(name="replace", bind=True, shared=False)
    def replace(self: Any, kind: str, x: int) -> Any:
        add = app.tasks["add"]
        replacements = {
            "task": add.s(x, 1),
            "chain": add.s(x, 1) | app.tasks["double"].s(),
            "group": group(add.s(x, n) for n in range(3)),
            "chord": chord([add.s(x, n) for n in range(3)], app.tasks["total"].s()),
            "later": add.s(x, 1).set(countdown=0.5),
        }
        return self.replace(replacements[kind])

    @app.task(name="spawn", bind=True, shared=False)
    def spawn(self: Any, count: int, key: str) -> int:
        """A task that calls others, as most do."""
        for number in range(count):
            app.tasks["trace"].delay(number, key=key)
        return count


def _add_retries(app: Any) -> None:
    @app.task(name="retry_twice", bind=True, shared=False, max_retries=3)
    def retry_twice(self: Any, x: int) -> list[int]:
        if self.request.retries < 2:
            raise self.retry(countdown=0.05)
        return [x, self.request.retries]

    @app.task(name="retry_later", bind=True, shared=False, max_retries=3)
    def retry_later(self: Any, x: int) -> list[int]:
        """With more to wait than `outbox_hold_retries` here."""
        if self.request.retries < 2:
            raise self.retry(countdown=0.5)
        return [x, self.request.retries]

    @app.task(name="retry_for_ever", bind=True, shared=False, max_retries=1)
    def retry_for_ever(self: Any) -> None:
        raise self.retry(countdown=0.05, exc=KeyError("still"))

    @app.task(
        name="autoretry", bind=True, shared=False,
        autoretry_for=(ValueError,), retry_backoff=False, default_retry_delay=0.05,
    )  # fmt: skip
    def autoretry(self: Any) -> int:
        if self.request.retries < 2:
            raise ValueError("not yet")
        return int(self.request.retries)


if "CANVAS_APP" in os.environ:
    app = build(os.environ["CANVAS_APP"], json.loads(os.environ["CANVAS_CONF"]))
