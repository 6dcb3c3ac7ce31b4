"""Commit calls that are to be held, due one after the other at even distances.

    python -m benchmarks.agents.hold <calls> <first> <seconds>

The first is due after `first` seconds, the last one `seconds` later. One transaction, one bulk.
"""

from __future__ import annotations

import sys

from benchmarks import agents


def main() -> None:
    count, first, seconds = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    app = agents.start()
    from django.db import transaction

    task = app.tasks["benchmarks.noop"]
    with transaction.atomic(), app.outbox_bulk():
        for number in range(count):
            countdown = first + seconds * number / max(1, count - 1)
            task.apply_async((number, "x" * 100), countdown=countdown)
    print("done", flush=True)


main()
