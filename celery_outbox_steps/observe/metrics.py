"""Metrics go to a sink: a small interface that a vendor's client or the project implements.

`CELERY_OUTBOX_METRICS` names a callable that takes the Celery app and returns a `Sink`, or None for
no metrics; "datadog" is short for ours. `Metrics` is the recorder that measures. Its `Meter` adds
up counters, chooses the task-name tag and catches what the sink raises, so that an error in metrics
never affects a message.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from celery_outbox_steps.messages import Dead, Deferred, Expired, Published, Retry
from celery_outbox_steps.observe.log import log
from celery_outbox_steps.observe.recorder import Recorder
from celery_outbox_steps.settings import load, read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_outbox_steps.messages import BatchResult
    from celery_outbox_steps.store import Sample

OTHER = "other"
"""The `task_name` of tasks that are not on the allow-list."""

SETTINGS = ("metrics", "metrics_task_names")
"""The settings that a meter depends on."""


class Metric(NamedTuple):
    """One row of the catalogue."""

    kind: str
    tags: tuple[str, ...]
    help: str


MESSAGE_TAGS = ("database", "task_name")
METRICS = {
    "messages.enqueued": Metric("counter", MESSAGE_TAGS, "Calls stored, counted at the commit."),
    "messages.published": Metric("counter", MESSAGE_TAGS, "Messages that the broker accepted."),
    "messages.failed": Metric("counter", MESSAGE_TAGS, "Failed attempts; a retry follows."),
    "messages.exceeded": Metric("counter", MESSAGE_TAGS, "Messages that became dead letters."),
    "messages.deferred": Metric(
        "counter",
        MESSAGE_TAGS,
        "Messages put back because the broker or their queue was down; no retry spent.",
    ),
    "messages.expired": Metric(
        "counter", MESSAGE_TAGS, "Held calls whose `expires` passed; they are not published."
    ),
    "messages.fenced": Metric(
        "counter", ("database",), "Rows lost to another relay before they were settled."
    ),
    "tasks.failed": Metric(
        "counter",
        MESSAGE_TAGS,
        "Tasks that failed for good and are kept as dead letters (`keep_failed_tasks`).",
    ),
    "queue.depth": Metric(
        "gauge",
        ("database",),
        "Rows that should be published by now: waiting, in flight or backing off. Not scheduled.",
    ),
    "dead_letter.count": Metric("gauge", ("database",), "Dead letters of both kinds."),
    "oldest_pending_age_seconds": Metric(
        "gauge", ("database",), "Time since the oldest of these rows was due for the first time."
    ),
    "batch.size": Metric("gauge", ("database",), "Rows of the last batch."),
    "batch.duration_ms": Metric(
        "timing", ("database",), "From the claim of a batch to the last answer of the broker."
    ),
    "publish.latency_ms": Metric(
        "timing", ("database",), "From a row's due time to the broker's confirm: mean of a batch."
    ),
    "publish.latency_max_ms": Metric(
        "timing",
        ("database",),
        "From a row's due time to the broker's confirm: slowest of a batch.",
    ),
}


class Sink(Protocol):
    """Where metrics go. Names come without the prefix `celery_outbox.`."""

    def increment(self, name: str, value: int, tags: Mapping[str, str]) -> None: ...

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None: ...

    def timing(self, name: str, milliseconds: float, tags: Mapping[str, str]) -> None: ...


METRIC_OF = {
    Published: "messages.published",
    Retry: "messages.failed",
    Dead: "messages.exceeded",
    Deferred: "messages.deferred",
    Expired: "messages.expired",
}


class Metrics(Recorder):
    """Measures batches, samples and commits. Counters are added up, not sent per message."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def on_enqueued(self, database: str, counts: Mapping[str, int]) -> None:
        self._meter.count_messages(
            {("messages.enqueued", name): count for name, count in counts.items()}, database
        )

    def on_failed_task(self, database: str, task_name: str) -> None:
        self._meter.count_messages({("tasks.failed", task_name): 1}, database)

    def on_batch(self, database: str, result: BatchResult) -> None:
        tags = {"database": database}
        counts = Counter(
            (METRIC_OF[type(each)], each.message.task_name) for each in result.outcomes
        )
        self._meter.count_messages(counts, database)
        if result.fenced:
            self._meter.count("messages.fenced", result.fenced, tags)
        self._meter.measure("batch.size", result.claimed, tags)
        self._meter.time("batch.duration_ms", result.duration * 1000, tags)
        published = [each.message for each in result.outcomes if isinstance(each, Published)]
        waits = [message.waited - message.held for message in published]
        if waits:
            mean, longest = sum(waits) / len(waits) + result.duration, max(waits) + result.duration
            self._meter.time("publish.latency_ms", mean * 1000, tags)
            self._meter.time("publish.latency_max_ms", longest * 1000, tags)

    def on_sample(self, database: str, sample: Sample) -> None:
        tags = {"database": database}
        self._meter.measure("queue.depth", sample.depth, tags)
        self._meter.measure("dead_letter.count", sample.dead_letters, tags)
        self._meter.measure("oldest_pending_age_seconds", sample.oldest_pending_seconds, tags)


class Meter:
    """One sink, whose errors are caught.

    `task_names` are the names and patterns to use as tags: () for none, None for all.
    """

    def __init__(self, sink: Sink, *, task_names: tuple[str, ...] | None = None) -> None:
        self._sink = sink
        self._task_names = task_names
        self._failed = False
        self._cached_tag = lru_cache(maxsize=1024)(self._tag_of)

    def count_messages(self, counts: Mapping[tuple[str, str], int], database: str) -> None:
        """Report counters by (metric, task name), with one call of the sink per metric and tag."""
        totals: Counter[tuple[str, str | None]] = Counter()
        for (metric, task_name), count in counts.items():
            totals[metric, self._cached_tag(task_name)] += count
        for (metric, tag), total in totals.items():
            tags = {"database": database}
            self.count(metric, total, tags if tag is None else {**tags, "task_name": tag})

    def count(self, name: str, value: int, tags: Mapping[str, str]) -> None:
        self._call("increment", name, value, tags)

    def measure(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        self._call("gauge", name, value, tags)

    def time(self, name: str, milliseconds: float, tags: Mapping[str, str]) -> None:
        self._call("timing", name, milliseconds, tags)

    def _tag_of(self, task_name: str) -> str | None:
        allowed = self._task_names
        if allowed == ():
            return None
        if allowed is None or any(fnmatch.fnmatchcase(task_name, each) for each in allowed):
            return task_name
        return OTHER

    def _call(self, method: str, *args: Any) -> None:
        try:
            getattr(self._sink, method)(*args)
        except Exception as exc:  # noqa: BLE001  a sink is the project's or a vendor's code
            self._log_once(exc)

    def _log_once(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            log("celery_outbox_metrics_failed", type(error).__name__, exc_info=error)


def meter_for(app: Any) -> Meter | None:
    """A meter for the configured sink, or None if metrics are off."""
    factory = load(app.conf, "metrics")
    sink: Sink | None = None if factory is None else factory(app)
    if sink is None:
        return None
    return Meter(sink, task_names=read(app.conf, "metrics_task_names"))
