"""The ids of callbacks: the same at every delivery, so that the inbox recognises them.

The tasks of a chain and a chord's body have ids in the message. Callbacks of a `link` have none:
Celery would give them new ones each time that the task is delivered, and they would be other work.
Here they are derived from the task's own id. `once.py` calls it before the task returns.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid5

NAMESPACE = UUID("6f0b6a6e-8f0e-5d4f-9a55-1f4d3a3c2b10")
CANVAS = {"chain": ("tasks",), "group": ("tasks",), "chord": ("header", "body")}
"""Where a canvas keeps its signatures, among its keyword arguments."""


def fix_callback_ids(request: Any) -> None:
    """Give the callbacks of a running task ids, unless they have some."""
    if request.callbacks:
        request.callbacks = _fixed(request.callbacks, str(request.id))


def _fixed(found: Any, seed: str) -> Any:
    if isinstance(found, (list, tuple)):
        return [_fixed(each, f"{seed}/{number}") for number, each in enumerate(found)]
    if not isinstance(found, dict):
        return found
    parts = CANVAS.get(found.get("subtask_type") or "")
    if parts is None:
        options = {"task_id": str(uuid5(NAMESPACE, seed)), **(found.get("options") or {})}
        return {**found, "options": options}
    kwargs = found["kwargs"]
    fixed = {name: _fixed(kwargs[name], f"{seed}/{name}") for name in parts if name in kwargs}
    return {**found, "kwargs": {**kwargs, **fixed}}
