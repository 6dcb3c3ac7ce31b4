"""Relay rows in this process and count the database statements that this takes.

python -m benchmarks.agents.statements <messages>
"""

from __future__ import annotations

import os
import sys
from typing import Any

from benchmarks import agents


def ours(app: Any, messages: int, count: Any) -> None:
    from celery_outbox_steps.observe.recorders import recorders_for
    from celery_outbox_steps.publishers import publisher_for
    from celery_outbox_steps.relay.tick import Relay
    from celery_outbox_steps.settings import RelayConfig
    from django_integration.store import stores

    (store,) = stores(app)
    publisher, recorders = publisher_for(app), recorders_for(app)
    relay = Relay(app, store, publisher, RelayConfig(), "statements", recorders=recorders)
    store.check()
    done = 0
    with store._session.wrapper.execute_wrapper(count):
        while done < messages:
            done += relay.run_once().published


def peer(app: Any, messages: int, count: Any) -> None:
    from django.db import connection
    from django_celery_outbox.models import CeleryOutbox
    from django_celery_outbox.relay import Relay, RelayConfig

    relay = Relay(app, RelayConfig.init(idle_time=0, queue_snapshot_refresh_seconds=1e6))
    connection.ensure_connection()
    batches = -(-messages // 100)
    with connection.execute_wrapper(count):
        for _ in range(batches):
            relay._processing()
    if CeleryOutbox.objects.exists():
        raise RuntimeError("the peer left rows behind")


def main() -> None:
    app = agents.start()
    messages, statements = int(sys.argv[1]), 0

    def count(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(sql, params, many, context)

    side = {"ours": ours, "peer": peer}[os.environ["OUTBOX_BENCH_SIDE"]]
    side(app, messages, count)
    print(f"answer {statements}", flush=True)


main()
