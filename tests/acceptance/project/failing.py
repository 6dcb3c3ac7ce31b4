"""Tasks that fail in every way, until the test mends them; each run leaves its request in Redis."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from typing import Any

from celery import chord
from celery.exceptions import Ignore, Reject

from tests.acceptance.project.app import app, ledger, record

__all__ = ["app", "record"]

SEEN = (
    "id", "args", "kwargs", "headers", "retries", "expires", "root_id", "parent_id", "group",
    "timelimit", "correlation_id", "reply_to", "origin", "stamps", "outbox_eta",
)  # fmt: skip


def redact(name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return ["hidden" for _ in args], dict.fromkeys(kwargs, "hidden")


def note_run(request: Any) -> bool:
    """Leave the request in the ledger. Returns whether the test has mended the tasks."""
    info = request.delivery_info
    seen = {name: request.get(name) for name in SEEN}
    seen |= {name: info[name] for name in ("exchange", "routing_key", "priority")}
    seen |= {"chain": len(request.chain or ()), "links": len(request.callbacks or ())}
    client, prefix = ledger()
    with client:
        client.rpush(f"{prefix}:runs", json.dumps(seen, default=str))
        return bool(client.exists(f"{prefix}:mended"))


@app.task(name="fail", bind=True, max_retries=2, default_retry_delay=0)
def fail(self: Any, items: list[int], **kwargs: Any) -> str:
    """Fails three times, and spoils its arguments, as tasks do."""
    if note_run(self.request):
        return "done"
    try:
        raise ValueError("not yet")
    except ValueError as exc:
        if self.request.retries == self.max_retries:
            items.append(666)
        raise self.retry(exc=exc) from exc


@app.task(name="fail_at_once", bind=True)
def fail_at_once(self: Any, *args: Any, **kwargs: Any) -> None:
    if not note_run(self.request):
        raise LookupError("at once")


@app.task(name="no_arguments")
def no_arguments() -> None:
    """Called with some, it never runs."""


@app.task(name="loud", bind=True)
def loud(self: Any) -> None:
    raise ValueError("first line\n\x00\udfff ☃ 😀 " + "x" * 5_000_000)


@app.task(name="ignored")
def ignored() -> None:
    raise Ignore


@app.task(name="rejected", acks_late=True)
def rejected() -> None:
    raise Reject("no", requeue=False)


@app.task(name="second_time", bind=True, default_retry_delay=0)
def second_time(self: Any) -> None:
    if self.request.retries == 0:
        raise self.retry()


@app.task(name="eager")
def eager() -> None:
    """A task within this one fails, which is not the worker's business."""
    fail_at_once.apply()


@app.task(name="slow", bind=True, time_limit=1)
def slow(self: Any) -> None:
    if not note_run(self.request):
        time.sleep(30)


@app.task(name="killed", bind=True)
def killed(self: Any, how: str) -> None:
    if not note_run(self.request):
        os.kill(os.getpid(), getattr(signal, how))


@app.task(name="endless", bind=True)
def endless(self: Any) -> None:
    note_run(self.request)
    time.sleep(60)


@app.task(name="start_chord")
def start_chord() -> None:
    """A chord whose header fails; the ids of its tasks go into the ledger."""
    header = [fail_at_once.s().set(task_id=str(uuid.uuid4())) for _ in range(2)]
    client, prefix = ledger()
    with client:
        client.rpush(f"{prefix}:chord", *(each.id for each in header))
    chord(header, record.si("body"), app=app).delay()
