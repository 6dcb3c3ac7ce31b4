"""Send a number of tasks directly to RabbitMQ, for a worker to execute.

python -m benchmarks.agents.tasks <count>
"""

from __future__ import annotations

import sys

from benchmarks import agents


def main() -> None:
    app = agents.start()
    task = app.tasks["benchmarks.noop"]
    with app.producer_or_acquire() as producer:
        for number in range(int(sys.argv[1])):
            task.apply_async((number,), producer=producer)
    print("done", flush=True)


main()
