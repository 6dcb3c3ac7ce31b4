"""The settings that a call needs, read and validated once, and again after they were changed."""

from __future__ import annotations

import fnmatch
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_outbox_steps import metrics
from celery_outbox_steps.config import load, read
from django_integration import context

if TYPE_CHECKING:
    from django_integration.redaction import Redactor


class EnqueueSettings:
    """One app's settings at one time."""

    def __init__(self, app: Any) -> None:
        self.require_transaction: bool = read(app.conf, "require_transaction")
        self.notify: bool = read(app.conf, "notify")
        self.redactor: Redactor | None = load(app.conf, "redactor")
        self.meter = metrics.meter_for(app)
        names = read(app.conf, "exclude_tasks")
        self._excluded = frozenset(names)
        self._patterns = [name for name in names if any(sign in name for sign in "*?[")]
        keys = read(app.conf, "structlog_context_keys")
        self.catch_context = partial(
            context.catch,
            structlog=read(app.conf, "structlog_enabled"),
            keys=None if keys is None else frozenset(keys),
        )

    def excludes(self, task_name: str) -> bool:
        """Whether `CELERY_OUTBOX_EXCLUDE_TASKS` sends this task directly to the broker."""
        return task_name in self._excluded or any(
            fnmatch.fnmatchcase(task_name, pattern) for pattern in self._patterns
        )
