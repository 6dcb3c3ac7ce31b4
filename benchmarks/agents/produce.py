"""Commit calls at an even pace and record when each was committed.

    python -m benchmarks.agents.produce <file>

A line on stdin: calls per second, seconds, calls per transaction. The file gets one line per call.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import agents


def produce(task: Any, rate: float, seconds: float, together: int) -> list[tuple[str, float]]:
    from django.db import transaction

    committed: list[tuple[str, float]] = []
    began = time.monotonic()
    for number in range(int(rate * seconds / together)):
        time.sleep(max(0.0, began + number * together / rate - time.monotonic()))
        with transaction.atomic():
            ids = [task.delay(number, "x" * 100).id for _ in range(together)]
        now = time.monotonic()
        committed += [(task_id, now) for task_id in ids]
    return committed


def main() -> None:
    task = agents.start().tasks["benchmarks.noop"]
    produce(task, 100, 0.2, 1)
    print("ready", flush=True)
    for line in sys.stdin:
        rate, seconds, together = line.split()
        began = time.monotonic()
        committed = produce(task, float(rate), float(seconds), int(together))
        Path(sys.argv[1]).write_text("".join(f"{name} {at}\n" for name, at in committed))
        print(len(committed) / (time.monotonic() - began), flush=True)


main()
