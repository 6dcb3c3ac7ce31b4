"""Make task calls in a transaction, and print what one of them costs.

    python -m benchmarks.agents.enqueue single | bulk | group | on_commit | round_trip | insert

The last two make no calls; they show the limit: what the driver needs for the statement alone.
Every line on stdin is a number of calls per transaction and a number of transactions.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from time import perf_counter, process_time
from typing import Any

from benchmarks import agents

PAYLOAD = "x" * 100


def single(task: Any, count: int) -> None:
    for number in range(count):
        task.delay(number, PAYLOAD)


def bulk(task: Any, count: int) -> None:
    with task.app.outbox_bulk():
        single(task, count)


def group(task: Any, count: int) -> None:
    from celery import group

    group(task.s(number, PAYLOAD) for number in range(count)).apply_async()


def on_commit(task: Any, count: int) -> None:
    for number in range(count):
        task.delay_on_commit(number, PAYLOAD)


def round_trip(task: Any, count: int) -> None:  # noqa: ARG001  a form like the others
    from django.db import connection

    cursor = connection.connection.cursor()
    for _ in range(count):
        cursor.execute("SELECT 1")


def insert(task: Any, count: int) -> None:
    from django.db import connection

    sql, params = insertion(task)
    cursor = connection.connection.cursor()
    for _ in range(count):
        cursor.execute(sql, params)


@lru_cache(maxsize=1)
def insertion(task: Any) -> tuple[str, list[Any]]:
    """The statement that one call executes."""
    from django.db import connection

    from django_integration.enqueue import rows
    from django_integration.schema import CALL_COLUMNS

    task.delay(0, PAYLOAD)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(CALL_COLUMNS)} FROM celery_outbox LIMIT 1")
        return rows._insertion(
            "postgresql", [rows.Row(*cursor.fetchone())], notify=False, soon=None
        )


FORMS = {
    "single": single,
    "bulk": bulk,
    "group": group,
    "on_commit": on_commit,
    "round_trip": round_trip,
    "insert": insert,
}


def measure(form: Any, task: Any, count: int, transactions: int) -> dict[str, float]:
    """Microseconds per call, the median transaction's."""
    from django.db import transaction

    rows = []
    for _ in range(transactions):
        with transaction.atomic():
            form(task, 1)  # connects, begins the transaction
            began, cpu = perf_counter(), process_time()
            form(task, count)
            called, cpu = perf_counter(), process_time() - cpu
        rows.append((called - began, perf_counter() - began, cpu))
    middle = len(rows) // 2
    call, committed, cpu = (
        sorted(column)[middle] / count * 1e6 for column in zip(*rows, strict=True)
    )
    return {"call": call, "committed": committed, "cpu": cpu}


def main() -> None:
    form = FORMS[sys.argv[1]]
    task = agents.start().tasks["benchmarks.noop"]
    measure(form, task, 20, 1)  # imports, caches, declares the queue
    print("ready", flush=True)
    for line in sys.stdin:
        count, transactions = map(int, line.split())
        print(json.dumps(measure(form, task, count, transactions)), flush=True)


main()
