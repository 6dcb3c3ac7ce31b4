"""Publish events with data of a given size and a key: the rows that backlogs are copied from.

python -m benchmarks.agents.events <count> <bytes>
"""

from __future__ import annotations

import os
import sys

from benchmarks import agents


def main() -> None:
    os.environ["OUTBOX_BENCH_EVENTS"] = "1"
    app = agents.start()
    from django.db import transaction

    count, size = int(sys.argv[1]), int(sys.argv[2])
    with transaction.atomic():
        for number in range(count):
            app.outbox.publish("benchmarks.noop", "x" * size, to="events", key=f"{number}")
    print("done", flush=True)


main()
