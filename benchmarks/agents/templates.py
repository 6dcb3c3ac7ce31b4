"""Store calls with arguments of a given size: the rows that backlogs are copied from.

python -m benchmarks.agents.templates <count> <bytes>
"""

from __future__ import annotations

import sys

from benchmarks import agents


def main() -> None:
    app = agents.start()
    from django.db import transaction

    count, size = int(sys.argv[1]), int(sys.argv[2])
    task = app.tasks["benchmarks.noop"]
    with transaction.atomic():
        for number in range(count):
            task.delay(number, "x" * size)
    print("done", flush=True)


main()
