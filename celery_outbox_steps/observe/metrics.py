"""Metrics go to sinks: a small interface that a vendor's client or the project implements.

`CELERY_OUTBOX_METRICS` names callables that take the Celery app and return a `Sink`, or None for no
metrics; "prometheus", "opentelemetry" and "datadog" are short for ours. `METRICS` has the names.
`Metrics` is the recorder that measures. Its `Meter` adds up counters, chooses the task-name tag and
catches what a sink raises, so that an error in metrics never affects a message.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from celery_outbox_steps.messages import Dead, Deferred, Expired, Published, Retry
from celery_outbox_steps.observe.log import log
from celery_outbox_steps.observe.recorder import Recorder
from celery_outbox_steps.settings import load, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from celery_outbox_steps.messages import BatchResult
    from celery_outbox_steps.store import Sample

OTHER = "other"
"""The `task_name` of tasks that are not on the allow-list."""

ROW_STATES = ("waiting", "in_flight", "backing_off", "scheduled")
"""The values of the tag `state` of `rows`."""

DELIVERY_STATES = (*ROW_STATES, "held_back")
"""The same for a destination, where a message waits for earlier ones with its key."""

SETTINGS = ("metrics", "metrics_task_names")
"""The settings that a meter depends on."""


class Metric(NamedTuple):
    """One row of the catalogue."""

    kind: str
    tags: tuple[str, ...]
    help: str
    prometheus: str = ""
    """The name in Prometheus; OpenTelemetry has the same metrics. Empty: it is not there, where
    other metrics say the same better."""
    buckets: tuple[float, ...] = ()
    """The bounds of a histogram's buckets, in seconds."""
    pushed: bool = True
    """Whether `Sink`s get it. The others are asked for when Prometheus scrapes."""


DATABASE = ("database",)
LANE = ("database", "destination")
"""`destination` is missing for the app's own broker. Prometheus gets an empty one, which means the
same to it: series of a project without destinations are what they always were."""
MESSAGE_TAGS = (*LANE, "task_name")
BATCH_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LAG_BUCKETS = (*BATCH_BUCKETS, 60.0, 120.0, 300.0, 900.0, 3600.0)
METRICS = {
    "messages.enqueued": Metric(
        "counter",
        MESSAGE_TAGS,
        "Calls and events stored, counted at the commit. `task_name` is that of the event.",
        "celery_outbox_messages_enqueued_total",
    ),
    "messages.published": Metric(
        "counter",
        MESSAGE_TAGS,
        "Messages that the broker accepted.",
        "celery_outbox_messages_published_total",
    ),
    "messages.failed": Metric(
        "counter",
        MESSAGE_TAGS,
        "Failed attempts; a retry follows.",
        "celery_outbox_messages_failed_total",
    ),
    "messages.exceeded": Metric(
        "counter",
        MESSAGE_TAGS,
        "Messages that became dead letters.",
        "celery_outbox_messages_dead_total",
    ),
    "messages.deferred": Metric(
        "counter",
        MESSAGE_TAGS,
        "Messages put back because the broker or their queue was down; no retry spent.",
        "celery_outbox_messages_deferred_total",
    ),
    "messages.expired": Metric(
        "counter",
        MESSAGE_TAGS,
        "Held calls whose `expires` passed; they are not published.",
        "celery_outbox_messages_expired_total",
    ),
    "messages.fenced": Metric(
        "counter",
        LANE,
        "Rows lost to another relay before they were settled.",
        "celery_outbox_messages_fenced_total",
    ),
    "tasks.failed": Metric(
        "counter",
        (*DATABASE, "task_name"),
        "Tasks that failed for good and are kept as dead letters (`keep_failed_tasks`).",
        "celery_outbox_tasks_failed_total",
    ),
    "oldest_due_age_seconds": Metric(
        "gauge",
        LANE,
        "For how long the oldest row that is due has been due. Rows that back off do not count.",
        "celery_outbox_oldest_due_age_seconds",
    ),
    "rows": Metric(
        "gauge",
        (*LANE, "state"),
        "Rows that are not published yet: waiting, in_flight, backing_off or scheduled; for a "
        "destination also held_back, behind an earlier one with the same key.",
        "celery_outbox_rows",
    ),
    "dead_letters": Metric(
        "gauge",
        (*LANE, "kind"),
        "Dead letters: messages that could not be published, and tasks that failed.",
        "celery_outbox_dead_letters",
        pushed=False,
    ),
    "relay.state": Metric(
        "gauge",
        (*LANE, "state"),
        "1 for what this worker's relay does now, 0 for the other states.",
        "celery_outbox_relay_state",
        pushed=False,
    ),
    "relay.broker_up": Metric(
        "gauge",
        DATABASE,
        "1 while this worker is connected to the broker.",
        "celery_outbox_broker_up",
        pushed=False,
    ),
    "relay.breaker_open": Metric(
        "gauge",
        LANE,
        "1 while this relay claims next to nothing, because the broker accepted no messages.",
        "celery_outbox_breaker_open",
        pushed=False,
    ),
    "relay.paused": Metric(
        "gauge",
        LANE,
        "1 while this relay, or the whole outbox, is paused.",
        "celery_outbox_paused",
        pushed=False,
    ),
    "publish.lag_seconds": Metric(
        "histogram",
        LANE,
        "From a row's due time to the broker's confirm, for each message.",
        "celery_outbox_publish_lag_seconds",
        LAG_BUCKETS,
        pushed=False,
    ),
    "batch.duration_ms": Metric(
        "timing",
        LANE,
        "From the claim of a batch to the last answer of the broker.",
        "celery_outbox_batch_duration_seconds",
        BATCH_BUCKETS,
    ),
    "batch.size": Metric("gauge", LANE, "Rows of the last batch."),
    "publish.latency_ms": Metric(
        "timing", LANE, "From a row's due time to the broker's confirm: mean of a batch."
    ),
    "publish.latency_max_ms": Metric(
        "timing", LANE, "From a row's due time to the broker's confirm: slowest of a batch."
    ),
    "queue.depth": Metric(
        "gauge",
        LANE,
        "Rows that should be published by now: waiting, in flight or backing off. Not scheduled.",
    ),
    "dead_letter.count": Metric("gauge", LANE, "Dead letters of both kinds."),
    "oldest_pending_age_seconds": Metric(
        "gauge", LANE, "Time since the oldest row of `queue.depth` was due for the first time."
    ),
}


class Sink(Protocol):
    """Where metrics go. Names come without the prefix `celery_outbox.`."""

    def increment(self, name: str, value: int, tags: Mapping[str, str]) -> None: ...

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None: ...

    def timing(self, name: str, milliseconds: float, tags: Mapping[str, str]) -> None: ...


class Gauge(NamedTuple):
    """The value of a gauge now."""

    name: str
    value: float
    tags: Mapping[str, str]


class GaugeSource(Protocol):
    """Knows the gauges of a process."""

    def gauges(self) -> Iterable[Gauge]:
        """All that are known now. Called from any thread; uses no database and no broker."""


class Page(NamedTuple):
    """What a scrape gets."""

    content_type: str
    body: bytes


@runtime_checkable
class AskingSink(Sink, Protocol):
    """A sink that asks for gauges itself, so that none of them can be out of date."""

    def distribution(self, name: str, values: Sequence[float], tags: Mapping[str, str]) -> None: ...

    def watch(self, source: GaugeSource) -> None:
        """Ask this source from now on, for as long as it exists."""


@runtime_checkable
class ScrapedSink(AskingSink, Protocol):
    """A sink whose metrics are fetched."""

    def page(self) -> Page: ...


METRIC_OF = {
    Published: "messages.published",
    Retry: "messages.failed",
    Dead: "messages.exceeded",
    Deferred: "messages.deferred",
    Expired: "messages.expired",
}


def row_states(tags: Mapping[str, str]) -> tuple[str, ...]:
    """The states that rows of a relay with these tags can have."""
    return DELIVERY_STATES if "destination" in tags else ROW_STATES


class Metrics(Recorder):
    """Measures batches, samples and commits. Counters are added up, not sent per message."""

    def __init__(self, meter: Meter, destination: str | None = None) -> None:
        self._meter = meter
        self._lane = {} if destination is None else {"destination": destination}

    def on_enqueued(
        self, database: str, counts: Mapping[str, int], destination: str | None = None
    ) -> None:
        lane = {} if destination is None else {"destination": destination}
        self._meter.count_messages(
            {("messages.enqueued", name): count for name, count in counts.items()},
            {"database": database, **lane},
        )

    def on_failed_task(self, database: str, task_name: str) -> None:
        self._meter.count_messages({("tasks.failed", task_name): 1}, self._tags(database))

    def on_batch(self, database: str, result: BatchResult) -> None:
        tags = self._tags(database)
        counts = Counter(
            (METRIC_OF[type(each)], each.message.task_name) for each in result.outcomes
        )
        self._meter.count_messages(counts, tags)
        if result.fenced:
            self._meter.count("messages.fenced", result.fenced, tags)
        self._meter.measure("batch.size", result.claimed, tags)
        self._meter.time("batch.duration_ms", result.duration * 1000, tags)
        published = [each.message for each in result.outcomes if isinstance(each, Published)]
        if published:
            self._time_lags([each.waited - each.held + result.duration for each in published], tags)

    def on_sample(self, database: str, sample: Sample) -> None:
        tags = self._tags(database)
        self._meter.measure("oldest_due_age_seconds", sample.oldest_due_seconds, tags)
        for state in row_states(tags):
            self._meter.measure("rows", getattr(sample, state), {**tags, "state": state})
        self._meter.measure("queue.depth", sample.depth, tags)
        self._meter.measure("dead_letter.count", sample.dead_letters, tags)
        self._meter.measure("oldest_pending_age_seconds", sample.oldest_pending_seconds, tags)

    def _tags(self, database: str) -> dict[str, str]:
        return {"database": database, **self._lane}

    def _time_lags(self, lags: list[float], tags: Mapping[str, str]) -> None:
        self._meter.distribute("publish.lag_seconds", lags, tags)
        self._meter.time("publish.latency_ms", sum(lags) / len(lags) * 1000, tags)
        self._meter.time("publish.latency_max_ms", max(lags) * 1000, tags)


class Meter:
    """Sinks whose errors are caught.

    `task_names` are the names and patterns to use as tags: () for none, None for all.
    """

    def __init__(self, *sinks: Sink, task_names: tuple[str, ...] | None = None) -> None:
        self._sinks = sinks
        self._asking = tuple(sink for sink in sinks if isinstance(sink, AskingSink))
        self._task_names = task_names
        self._failed: set[int] = set()
        self._cached_tag = lru_cache(maxsize=1024)(self._tag_of)

    def count_messages(
        self, counts: Mapping[tuple[str, str], int], tags: Mapping[str, str]
    ) -> None:
        """Report counters by (metric, task name), with one call of a sink per metric and tag."""
        totals: Counter[tuple[str, str | None]] = Counter()
        for (metric, task_name), count in counts.items():
            totals[metric, self._cached_tag(task_name)] += count
        for (metric, tag), total in totals.items():
            self.count(metric, total, tags if tag is None else {**tags, "task_name": tag})

    def count(self, name: str, value: int, tags: Mapping[str, str]) -> None:
        self._call(self._sinks, "increment", name, value, tags)

    def measure(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        self._call(self._sinks, "gauge", name, value, tags)

    def time(self, name: str, milliseconds: float, tags: Mapping[str, str]) -> None:
        self._call(self._sinks, "timing", name, milliseconds, tags)

    def distribute(self, name: str, values: Sequence[float], tags: Mapping[str, str]) -> None:
        """Report many values of a histogram at once."""
        self._call(self._asking, "distribution", name, values, tags)

    def watch(self, source: GaugeSource) -> None:
        """Let the sinks that ask for gauges ask this source."""
        self._call(self._asking, "watch", source)

    def page(self) -> Page | None:
        """What a scrape gets; None if no sink is scraped."""
        return next((sink.page() for sink in self._sinks if isinstance(sink, ScrapedSink)), None)

    def _tag_of(self, task_name: str) -> str | None:
        allowed = self._task_names
        if allowed == ():
            return None
        if allowed is None or any(fnmatch.fnmatchcase(task_name, each) for each in allowed):
            return task_name
        return OTHER

    def _call(self, sinks: Iterable[Sink], method: str, *args: Any) -> None:
        for sink in sinks:
            try:
                getattr(sink, method)(*args)
            except Exception as exc:  # noqa: BLE001, PERF203  a sink is not our code
                self._log_once(sink, exc)

    def _log_once(self, sink: Sink, error: Exception) -> None:
        if id(sink) not in self._failed:
            self._failed.add(id(sink))
            log("celery_outbox_metrics_failed", type(error).__name__, exc_info=error)


def meter_for(app: Any) -> Meter | None:
    """A meter for the configured sinks, or None if metrics are off."""
    made = [factory(app) for factory in load(app.conf, "metrics")]
    sinks: list[Sink] = [sink for sink in made if sink is not None]
    if not sinks:
        return None
    return Meter(*sinks, task_names=read(app.conf, "metrics_task_names"))
