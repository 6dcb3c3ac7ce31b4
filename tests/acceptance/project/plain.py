"""A plain Celery app, without Django: `install(app)`, and a Store of one's own."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from kombu.utils.json import dumps

from celery_outbox_steps import OutboxRelayStep, install
from celery_outbox_steps.testing import MemoryStore

app = Celery("plain", broker=os.environ["ACCEPTANCE_BROKER"])
app.conf.update(
    task_default_queue=os.environ["ACCEPTANCE_QUEUE"],
    outbox_store="tests.acceptance.project.plain:stores",
)
install(app)
app.steps["worker"].add(OutboxRelayStep)


def stores(app: Any) -> list[MemoryStore]:
    """One Store with three rows in it."""
    store = MemoryStore()
    for number in range(3):
        task_id = f"plain-{number}"
        headers = {"id": task_id, "task": "plain.add", "lang": "py", "root_id": task_id}
        options = {
            "headers": headers,
            "properties": {"delivery_mode": 2, "correlation_id": task_id},
            "priority": 0,
            "exchange": "",
            "routing_key": os.environ["ACCEPTANCE_PARCELS"],
        }
        store.add("plain.add", task_id=task_id, args="[1]", options=dumps(options))
    return [store]
