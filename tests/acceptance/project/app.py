"""The app under test: one line adds the relay, one flag turns it on."""

from __future__ import annotations

import os
from typing import Any

import redis

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.acceptance.project.settings")

from django.db import transaction

from celery_outbox_steps import OutboxRelayStep
from django_integration import OutboxCelery

if os.environ.get("ACCEPTANCE_SLOW_FILES"):
    from tests.acceptance.project import slow_files as slow_files

app = OutboxCelery("acceptance")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.steps["worker"].add(OutboxRelayStep)


def ledger() -> tuple[Any, str]:
    url, prefix = os.environ["ACCEPTANCE_LEDGER"].split(" ")
    return redis.Redis.from_url(url, decode_responses=True), prefix


def write(task_id: str, name: str) -> None:
    client, prefix = ledger()
    with client:
        client.rpush(f"{prefix}:ran", f"{task_id} {name}")


@app.task(name="record", bind=True, ignore_result=True)
def record(self: Any, name: str = "") -> None:
    """Leave a trace of having run."""
    write(self.request.id, name)


@app.task(name="enqueue", bind=True, ignore_result=True)
def enqueue(self: Any, count: int = 1) -> None:
    """A task that calls other tasks, through the outbox."""
    for number in range(count):
        record.delay(f"of {self.request.id} {number}")
    write(self.request.id, "enqueue")


@app.task(name="announce", ignore_result=True)
def announce(to: str) -> None:
    """A task that publishes an event."""
    app.outbox.publish("order.paid", {"key": None, "number": 0}, to=to)


@app.task(name="enqueue_when_told", bind=True, ignore_result=True)
def enqueue_when_told(self: Any, name: str) -> None:
    """Say that it runs, wait for the test's word, then call another task."""
    client, prefix = ledger()
    with client:
        client.rpush(f"{prefix}:waiting", self.request.id)
        client.blpop(f"{prefix}:go", timeout=60)
    record.delay(name)


@app.task(name="later", bind=True, ignore_result=True)
def later(self: Any, countdown: float) -> None:
    """A task that calls another one for later."""
    record.apply_async(("later",), countdown=countdown)
    write(self.request.id, "now")


@app.task(name="again", bind=True, ignore_result=True)
def again(self: Any, countdown: float) -> None:
    """A task that succeeds at its second attempt."""
    if self.request.retries == 0:
        raise self.retry(countdown=countdown)
    write(self.request.id, "again")


@app.task(name="die_after_commit", ignore_result=True)
def die_after_commit(name: str) -> None:
    """Call a task on commit, and die before a hook could do it."""
    with transaction.atomic():
        transaction.on_commit(die)
        record.delay_on_commit(name)


@app.task(name="die", ignore_result=True)
def die() -> None:
    """Take the pool's child with it."""
    os._exit(9)
