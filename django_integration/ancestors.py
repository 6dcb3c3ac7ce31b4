"""Lineage: the ids of all ancestors of a task, root first, in one header of its message.

A call that a task makes gets the lineage of that task and its id; a call from a web request gets
none. `lineage()` reads it in the running task, `LineageFilter` puts it on log lines. A header can
contain anything: what is no lineage counts as none. `app.py` adds the header, and only if
`CELERY_OUTBOX_LINEAGE` is set.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from celery import current_app

from celery_outbox_steps.errors import printable
from celery_outbox_steps.messages import LINEAGE_HEADER

LONGEST = 32
"""Ids. Of a longer lineage the root and the newest ones are kept."""
LONGEST_HEADER = 16_384
"""Characters. Longer ones, of ids that are texts of hundreds of characters, are left out."""


def lineage() -> tuple[str, ...]:
    """The ids of the running task's ancestors: first the root, last the task that called it.

    Empty in a task that no other task called, outside a task, and in one that runs eagerly.
    """
    task = current_app.current_worker_task
    return () if task is None else _ancestors(task.request)


class LineageFilter(logging.Filter):
    """Gives each log record an attribute `lineage`: the ids, separated by spaces.

    For a handler of the logging module: `{"()": "django_integration.LineageFilter"}`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record."""
        record.lineage = printable(" ".join(lineage()))
        return True


def lineage_header(app: Any, task_id: str | None) -> dict[str, str]:
    """The header of a call that is made now. Empty outside a task."""
    task = app.current_worker_task
    if task is None:
        return {}
    ids = _ancestors(task.request)
    if task_id != task.request.id:  # a retry or replacement has the same id, and ancestors
        ids = (*ids, task.request.id)
    if len(ids) > LONGEST:
        ids = (ids[0], *ids[1 - LONGEST :])
    text = json.dumps(ids)
    return {LINEAGE_HEADER: text} if ids and len(text) <= LONGEST_HEADER else {}


def _ancestors(request: Any) -> tuple[str, ...]:
    text = request.get(LINEAGE_HEADER)
    if not isinstance(text, str) or len(text) > LONGEST_HEADER:
        return ()
    try:
        ids = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    is_lineage = isinstance(ids, list) and all(isinstance(each, str) for each in ids)
    return tuple(ids) if is_lineage else ()
