"""Rows that can't be published, inserted on purpose: only they must end as dead letters.

One more kind, of a version from the future, must be left alone for a relay that understands it.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.world import World

FUTURE = 999
_COLUMNS = "task_id, task_name, args, kwargs, options, created_at, due_at, retries, schema_version"


def _options(task_id: str, exchange: str, routing_key: str) -> str:
    return json.dumps({
        "headers": {"id": task_id, "task": "poison", "lang": "py"},
        "properties": {"delivery_mode": 2, "correlation_id": task_id},
        "priority": 0, "exchange": exchange, "routing_key": routing_key,
    })  # fmt: skip


class Poison:
    """What was put in."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.deadly: set[str] = set()
        self.waiting: set[str] = set()

    def add(self) -> None:
        """One of each kind, in one transaction."""
        ids = [f"poison-{uuid.uuid4()}" for _ in range(4)]
        rows = [
            (ids[0], "{", 1),
            (ids[1], _options(ids[1], "chaos.nowhere", "x"), 1),
            (ids[2], _options(ids[2], "", "chaos.no-such-queue"), 1),
            (ids[3], _options(ids[3], "", QUEUE), FUTURE),
        ]
        values = ", ".join(["(%s, 'poison', '[]', '{}', %s, now(), now(), 0, %s)"] * len(rows))
        self._world.sql(
            f"INSERT INTO celery_outbox ({_COLUMNS}) VALUES {values}",
            [value for row in rows for value in row],
        )
        self.deadly |= set(ids[:3])
        self.waiting.add(ids[3])


QUEUE = "chaos.audit"
