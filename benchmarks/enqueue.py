"""What one call costs: stored in an open transaction, in bulk and in a group, against a direct one.

All kinds take turns in one run, so that a busy machine slows all of them. Needs PostgreSQL with the
outbox migrated (OUTBOX_TEST_DB_NAME, "test" by default) and RabbitMQ (RABBITMQ_URL).

    OUTBOX_TEST_DB=postgresql python -m benchmarks.enqueue --rounds 30
"""

from __future__ import annotations

import argparse
import os
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import django
from celery import Celery, group

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 200
"""Calls per kind and round."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.proj.settings")
    os.environ.setdefault("OUTBOX_TEST_DB", "postgresql")
    django.setup()
    from django.db import transaction

    from django_integration import OutboxCelery

    stored, direct = (_task(cls) for cls in (OutboxCelery, Celery))
    with transaction.atomic():
        times = _measure(_kinds(stored, direct), rounds)
        transaction.set_rollback(True)
    with direct.app.connection_for_write() as connection:
        connection.default_channel.queue_delete(direct.app.conf.task_default_queue)
    _report(times)


def _task(cls: type) -> Any:
    broker = os.environ.get("RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//")
    app = cls("benchmark", broker=broker, set_as_current=False)
    app.conf.task_default_queue = f"benchmark-{uuid4().hex[:8]}"

    @app.task(name="benchmark.add", shared=False)
    def add(x: int, y: int = 0) -> int:
        return x + y

    return app.tasks["benchmark.add"]


def _kinds(stored: Any, direct: Any) -> dict[str, Callable[[], None]]:
    def one_by_one(task: Any) -> Callable[[], None]:
        def run() -> None:
            for number in range(CALLS):
                task.delay(number, y=2)

        return run

    def bulk() -> None:
        with stored.app.outbox_bulk():
            one_by_one(stored)()

    def in_a_group() -> None:
        group(stored.s(number, y=2) for number in range(CALLS)).apply_async()

    return {
        "direct": one_by_one(direct),
        "single": one_by_one(stored),
        "bulk": bulk,
        "group": in_a_group,
    }


def _measure(kinds: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for round_ in range(rounds + 1):
        for name, run in kinds.items():
            started = perf_counter()
            run()
            if round_:  # the first warms up
                times[name].append((perf_counter() - started) / CALLS)
    return times


def _report(times: dict[str, list[float]]) -> None:
    print(f"{'':8} {'median':>9} {'best':>9}   x direct  x single")
    for name, measured in times.items():
        middle, best = median(measured) * 1e6, min(measured) * 1e6
        ratios = [median(_ratios(measured, times[base])) for base in ("direct", "single")]
        print(f"{name:8} {middle:6.0f} us {best:6.0f} us   {ratios[0]:8.2f}  {ratios[1]:8.2f}")


def _ratios(measured: list[float], base: list[float]) -> list[float]:
    """Round by round, because neighbours in time saw the same machine."""
    return [one / other for one, other in zip(measured, base, strict=True)]


if __name__ == "__main__":
    main()
