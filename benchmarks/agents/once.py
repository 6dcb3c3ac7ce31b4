"""Run empty tasks as a worker does, and print what one of them costs.

    python -m benchmarks.agents.once atomic | atomic_write | once | once_write | duplicate

Every line on stdin is a number of runs. Celery's own tracer runs them, without a result backend.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from itertools import count
from time import perf_counter, process_time
from typing import Any

from benchmarks import agents

TABLE = "CREATE TABLE IF NOT EXISTS once_effects (name VARCHAR(100))"
_numbers = count()


def tasks(app: Any) -> dict[str, Any]:
    """The contenders, which differ in their decorator and in whether they write a row."""
    from django.db import connection, transaction

    from django_integration import once

    def nothing() -> None:
        """An empty task."""

    def write() -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO once_effects VALUES ('done')")

    return {
        "atomic": app.task(transaction.atomic(nothing), name="atomic"),
        "atomic_write": app.task(transaction.atomic(write), name="atomic_write"),
        "once": app.task(once(nothing), name="once"),
        "once_write": app.task(once(write), name="once_write"),
        "duplicate": app.task(once(nothing), name="duplicate"),
    }


def measure(task: Any, runs: int) -> dict[str, float]:
    """Microseconds per run: the median, and the mean of CPU time."""
    from celery.app.trace import build_tracer

    trace, took, cpu = build_tracer(task.name, task, app=task.app), [], process_time()
    for _ in range(runs):
        number = "same" if task.name == "duplicate" else f"{os.getpid()}-{next(_numbers)}"
        request = {"id": number, "task": task.name, "delivery_info": {}, "headers": {}}
        began = perf_counter()
        ended = trace(number, (), {}, request)
        took.append(perf_counter() - began)
        assert ended.info is None, ended.retval
    return {
        "run": statistics.median(took) * 1e6,
        "cpu": (process_time() - cpu) / runs * 1e6,
    }


def main() -> None:
    app = agents.start()
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(TABLE)
    task = tasks(app)[sys.argv[1]]
    measure(task, 20)  # imports, connects
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(task, int(line))), flush=True)


main()
