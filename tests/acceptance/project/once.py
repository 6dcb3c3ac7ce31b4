"""Tasks with `@once` in chains, chords and callbacks, whose messages are all delivered repeatedly.

Every call that is stored is copied in the table, once or twice: the relay publishes each message
two or three times, one right after the other, so that two workers get them at the same moment.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import threading
import zlib
from typing import Any

from celery import chain, chord
from django.db import connection, transaction

from celery_outbox_steps import OutboxRelayStep
from django_integration import once
from django_integration.schema import MESSAGE_COLUMNS
from django_integration.signals import outbox_message_created
from tests.acceptance.project.app import app, ledger

__all__ = ["OutboxRelayStep", "app"]

LATE = {"acks_late": True, "reject_on_worker_lost": True, "ignore_result": False}
COLUMNS = ", ".join((*MESSAGE_COLUMNS, "due_at"))


def copy_row(task_id: str, **_: Any) -> None:
    """Once per task, though a duplicate sends its continuation again."""
    client, prefix = ledger()
    with client:
        if not client.sadd(f"{prefix}:copied", task_id):
            return
    with connection.cursor() as cursor:
        for _ in range(1 + zlib.crc32(task_id.encode()) % 2):
            cursor.execute(
                f"INSERT INTO celery_outbox ({COLUMNS}) SELECT {COLUMNS} FROM celery_outbox"
                " WHERE task_id = %s ORDER BY id LIMIT 1",
                [task_id],
            )


if os.environ.get("ACCEPTANCE_COPIES"):
    outbox_message_created.connect(copy_row)


def do(what: str) -> None:
    """The effect of a task."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effects (name) VALUES (%s)", [what])


def die_around_the_continuation(function: Any) -> Any:
    """At the first run of a task: kill -9, at a random moment after its COMMIT.

    A process dies once. A task that it runs in its last milliseconds has its own death later.
    """
    doomed: list[str] = []

    @functools.wraps(function)
    def run(self: Any, *args: Any) -> Any:
        value = function(self, *args)
        client, prefix = ledger()
        with client:
            if not doomed and client.sadd(f"{prefix}:killed", self.request.id):
                doomed.append(self.request.id)
                delay = random.choice((0.0, random.uniform(0, 0.02)))
                threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return value

    return run


@app.task(name="step", **LATE)
@once
def step(flow: str) -> str:
    do(f"step {flow}")
    return f"{flow}."


@app.task(name="deadly", bind=True, **LATE)
@die_around_the_continuation
@once
def deadly(self: Any, flow: str) -> str:
    do(f"deadly {flow}")
    return f"{flow}!"


@app.task(name="collect", **LATE)
@once
def collect(parts: list[str]) -> None:
    do(f"collect {' '.join(sorted(parts))}")


@app.task(name="begin", ignore_result=True)
def begin(chains: int, chords: int, callbacks: int, deadly_chains: int = 0) -> None:
    """Call all flows, in one transaction."""
    with transaction.atomic():
        for number in range(chains):
            chain(step.s(f"chain-{number}"), step.s(), step.s()).apply_async()
        for number in range(chords):
            header = [step.s(f"chord-{number}-{part}") for part in range(3)]
            chord(header, collect.s()).apply_async()
        for number in range(callbacks):
            step.apply_async((f"callback-{number}",), link=step.s())
        for number in range(deadly_chains):
            chain(deadly.s(f"deadly-{number}"), deadly.s(), step.s()).apply_async()
