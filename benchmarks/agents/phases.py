"""Where the time goes, step by step: microseconds per message, of the fastest batch.

    python -m benchmarks.agents.phases relay | enqueue <messages>

`relay` needs that many rows in the table; `enqueue` makes its own calls and rolls them back.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from time import perf_counter, process_time
from typing import Any

from benchmarks import agents

BATCH = 500
CALLS = 50


class Clock:
    """Wraps methods and records how long each call takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def on(self, owner: Any, method: str, name: str) -> None:
        """Time `owner.method` under that name."""
        inner = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began, cpu = perf_counter(), process_time()
            answer = inner(*args, **kwargs)
            self.seconds[name].append((perf_counter() - began, process_time() - cpu))
            return answer

        setattr(owner, method, timed)

    def fastest(self, count: int, together: int = 1) -> dict[str, list[float]]:
        """Wall and CPU microseconds per message; `together` calls are one sample."""
        return {
            name: [
                min(sum(part) for part in _parts([each[kind] for each in times], together))
                / count
                * 1e6
                for kind in (0, 1)
            ]
            for name, times in self.seconds.items()
        }


def _parts(values: list[float], size: int) -> list[list[float]]:
    return [values[n : n + size] for n in range(0, len(values) - size + 1, size)]


def relay(app: Any, messages: int) -> dict[str, list[float]]:
    from celery_outbox_steps.observe.recorders import recorders_for
    from celery_outbox_steps.publishers import publisher_for
    from celery_outbox_steps.relay.tick import Relay
    from celery_outbox_steps.settings import RelayConfig
    from django_integration.store import stores

    (store,), publisher = stores(app), publisher_for(app)
    config, recorders = RelayConfig(batch_size=BATCH), recorders_for(app)
    one = Relay(app, store, publisher, config, "phases", recorders=recorders)
    one.run_once()  # connects and declares
    clock = Clock()
    clock.on(store, "claim", "claim")
    clock.on(one._publish_step, "publish_batch", "open the envelopes and publish")
    clock.on(store, "settle", "settle")
    clock.on(one, "run_once", "all of it")
    for _ in range(messages // BATCH - 1):
        one.run_once()
    return clock.fastest(BATCH)


def enqueue(app: Any, messages: int) -> dict[str, list[float]]:
    from django.db import transaction

    task, clock = app.tasks["benchmarks.noop"], Clock()
    with transaction.atomic():
        task.delay(0, "x" * 100)
        clock.on(app, "_capture", "Celery builds the message, and it is caught")
        clock.on(app.outbox, "_row", "make the row")
        clock.on(app.outbox, "_write", "INSERT, and what goes with it")
        clock.on(app, "send_task", "all of it")
        for number in range(messages):
            task.delay(number, "x" * 100)
        transaction.set_rollback(True)
    return clock.fastest(CALLS, together=CALLS)


def main() -> None:
    measure = {"relay": relay, "enqueue": enqueue}[sys.argv[1]]
    print(json.dumps(measure(agents.start(), int(sys.argv[2]))), flush=True)


main()
