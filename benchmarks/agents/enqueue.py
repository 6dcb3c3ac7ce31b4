"""Make task calls inside a transaction, and say what one of them cost.

    python -m benchmarks.agents.enqueue single | bulk | group | on_commit

Every line on stdin is a number of calls per transaction and a number of transactions.
"""

from __future__ import annotations

import json
import sys
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
    form = {"single": single, "bulk": bulk, "group": group, "on_commit": on_commit}[sys.argv[1]]
    task = agents.start().tasks["benchmarks.noop"]
    measure(form, task, 20, 1)  # imports, caches, declares the queue
    print("ready", flush=True)
    for line in sys.stdin:
        count, transactions = map(int, line.split())
        print(json.dumps(measure(form, task, count, transactions)), flush=True)


main()
