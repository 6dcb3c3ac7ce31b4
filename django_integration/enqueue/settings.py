"""The settings that a call needs, read and validated once, and again after a change.

Read from `app.conf` only; `conf.py` puts Django's settings there. `Enqueuer.settings` holds the
current object, and `Enqueuer.forget_settings()` drops it when a setting changes.
"""

from __future__ import annotations

import fnmatch
from threading import RLock
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.errors import OutboxError
from celery_outbox_steps.observe import metrics
from celery_outbox_steps.observe.recorders import recorders_for
from celery_outbox_steps.settings import load, read
from django_integration.schema import LOOK_AHEAD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_outbox_steps.destinations import Destination
    from django_integration.enqueue.redaction import Redactor


class Meters:
    """The meter of one app, replaced only if the settings of metrics change.

    Some sinks register their counters with a library, which can't be done twice.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = RLock()
        self._made: tuple[list[Any], metrics.Meter | None] | None = None

    def get(self) -> metrics.Meter | None:
        with self._lock:  # threads may race for the first call
            wanted = [read(self._app.conf, name) for name in metrics.SETTINGS]
            if self._made is None or self._made[0] != wanted:
                self._made = wanted, metrics.meter_for(self._app)
            return self._made[1]


class TaskNames(frozenset[str]):
    """Names and fnmatch patterns of tasks, as a setting has them."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self._patterns = [each for each in names if set(each) & set("*?[")]

    def match(self, task_name: str) -> bool:
        return task_name in self or any(
            fnmatch.fnmatchcase(task_name, pattern) for pattern in self._patterns
        )


class EnqueueSettings:
    """One app's settings at one time."""

    def __init__(self, app: Any, meters: Meters) -> None:
        self.require_transaction: bool = read(app.conf, "require_transaction")
        self.notify: bool = read(app.conf, "notify")
        self.hold: float | None = read(app.conf, "hold")
        self.soon: float = LOOK_AHEAD + read(app.conf, "idle_time")
        """A relay has to be told about a held row that is due within this many seconds."""
        self.hold_retries: float | None = read(app.conf, "hold_retries")
        self.redactor: Redactor | None = load(app.conf, "redactor")
        self.recorders = recorders_for(app, meters.get())
        self.lineage: bool = read(app.conf, "lineage")
        self.sends_context: bool = read(app.conf, "structlog_bind_in_tasks")
        self.adds_headers = self.lineage or self.sends_context
        """Whether a call needs a header of ours. Most projects have none of the two settings."""
        self.exclude_tasks = TaskNames(read(app.conf, "exclude_tasks"))
        self.keep_failed_tasks = TaskNames(read(app.conf, "keep_failed_tasks"))
        self.destinations: dict[str, Destination] = read(app.conf, "destinations")
        self.event_source: str = read(app.conf, "event_source")

    def excludes(self, task_name: str) -> bool:
        """Whether `CELERY_OUTBOX_EXCLUDE_TASKS` sends this task directly to the broker."""
        return self.exclude_tasks.match(task_name)

    def destination(self, name: Any) -> Destination:
        """The destination of this name. Raises `OutboxError` if there is none."""
        found = self.destinations.get(name) if isinstance(name, str) else None
        if found is None:
            known = ", ".join(map(repr, self.destinations)) or "none"
            raise OutboxError(
                f"{name!r} is not a destination. CELERY_OUTBOX_DESTINATIONS has {known}."
            )
        return found
