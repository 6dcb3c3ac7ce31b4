"""What can happen in a relay, and the one place where that becomes log lines, counters, metrics.

The relay and its service report here and know nothing of logging or vendors. Log lines say what
happens next; their fields stand in `extra`, the event's name in `extra["event"]`. Payloads never
appear. An idle relay is silent.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.errors import StoreError, describe, printable
from celery_outbox_steps.messages import (
    BatchResult,
    Dead,
    Deferred,
    Published,
    Retry,
)
from celery_outbox_steps.observe import tracing

if TYPE_CHECKING:
    from celery_outbox_steps.observe.metrics import Meter
    from celery_outbox_steps.store import Sample

logger = logging.getLogger("celery_outbox")
# Of its own, because Sentry gets these errors as exceptions and not as log lines.
error_logger = logging.getLogger("celery_outbox.relay")

RATE_WINDOW = 60.0
QUIET = 600.0
"""Seconds until an error that came, went and comes again is news again."""

METRIC_OF = {
    Published: "messages.published",
    Retry: "messages.failed",
    Dead: "messages.exceeded",
    Deferred: "messages.deferred",
}


class Journal:
    """The record of one relay."""

    def __init__(
        self,
        store_name: str,
        relay_id: str,
        meter: Meter | None = None,
        *,
        tracebacks: bool = True,
    ) -> None:
        self._fields = {"database": store_name, "relay": relay_id}
        self._tags = {"database": store_name}
        self._meter = meter
        self._tracebacks = tracebacks
        self._reported: dict[tuple[Any, ...], float] = {}
        self._away = False
        self._published: deque[tuple[float, int]] = deque()
        self.counters: Counter[str] = Counter()
        self.last_error: str | None = None
        self.last_published: float | None = None

    @property
    def measures(self) -> bool:
        """Whether anybody receives metrics."""
        return self._meter is not None

    def started(self, **fields: Any) -> None:
        self._log(logging.INFO, "celery_outbox_relay_started", "relaying", **fields)

    def stopped(self, **fields: Any) -> None:
        self._log(logging.INFO, "celery_outbox_relay_stopped", "no more rows are claimed", **fields)

    def paused(self, reason: str) -> None:
        self._log(
            logging.WARNING,
            "celery_outbox_relay_paused",
            "by remote control; rows wait until outbox_resume",
            reason=reason,
        )

    def resumed(self) -> None:
        self._log(logging.WARNING, "celery_outbox_relay_resumed", "relaying again")

    def batch(self, result: BatchResult) -> None:
        """Everything that one tick did."""
        if not result.claimed:
            return
        self._count(result)
        self._measure(result)
        self._broker(result)
        for outcome in result.outcomes:
            if isinstance(outcome, (Retry, Dead)):
                self._failure(outcome)
        if result.fenced:
            self._log(
                logging.WARNING,
                "celery_outbox_fenced",
                "rows were taken over before this relay could settle them, so they may be "
                "published twice; a longer stale_timeout prevents that",
                rows=result.fenced,
            )

    def failed(self, error: BaseException, failures: int, pause: float) -> None:
        """The loop itself failed: the database is away, or there is a bug to be found."""
        self.counters["errors"] += 1
        self.last_error = describe(error)
        news = self._is_news(error, failures)
        if news:
            tracing.capture(error, error_logger.name, self._fields)
        shown = news and self._tracebacks and not isinstance(error, StoreError)
        self._log(
            logging.ERROR if news else logging.WARNING,
            "celery_outbox_relay_error",
            f"{self.last_error}; trying again in {pause:g} s",
            to=error_logger,
            exc_info=error if shown else None,
            failures=failures,
            pause=pause,
        )

    def recovered(self, failures: int) -> None:
        since = monotonic() - QUIET
        self._reported = {kind: at for kind, at in self._reported.items() if at > since}
        self._log(
            logging.INFO, "celery_outbox_relay_recovered", "relaying again", failures=failures
        )

    def liveness_failed(self, error: Exception) -> None:
        """Said once: a full disk must not fill the log as well."""
        if not self.counters["liveness_errors"]:
            self._log(
                logging.ERROR,
                "celery_outbox_liveness_failed",
                f"{error}; the relay goes on, its probe will fail",
            )
        self.counters["liveness_errors"] += 1

    def sampled(self, sample: Sample) -> None:
        if self._meter is not None:
            self._meter.gauge("queue.depth", sample.depth, self._tags)
            self._meter.gauge("dead_letter.count", sample.dead_letters, self._tags)
            oldest = sample.oldest_pending_seconds
            self._meter.gauge("oldest_pending_age_seconds", oldest, self._tags)

    def rate(self) -> float:
        """Messages published per second over the last minute. Callable from any thread."""
        oldest = monotonic() - RATE_WINDOW
        return sum(count for at, count in tuple(self._published) if at >= oldest) / RATE_WINDOW

    def _count(self, result: BatchResult) -> None:
        self.counters.update(
            batches=1,
            claimed=result.claimed,
            published=result.published,
            failed=result.retried,
            dead=result.dead,
            deferred=result.deferred,
            released=result.released,
            fenced=result.fenced,
        )
        if result.published:
            self.last_published = monotonic()
            self._published.append((self.last_published, result.published))
            self._forget_old()

    def _forget_old(self) -> None:
        oldest = monotonic() - RATE_WINDOW
        while self._published and self._published[0][0] < oldest:
            self._published.popleft()

    def _measure(self, result: BatchResult) -> None:
        """Aggregated: one packet per task name and metric, not one per message."""
        if self._meter is None:
            return
        counts = Counter(
            (METRIC_OF[type(each)], each.message.task_name) for each in result.outcomes
        )
        self._meter.messages(counts, self._tags["database"])
        if result.fenced:
            self._meter.increment("messages.fenced", result.fenced, self._tags)
        self._meter.gauge("batch.size", result.claimed, self._tags)
        self._meter.timing("batch.duration_ms", result.duration * 1000, self._tags)
        waits = [each.message.waited for each in result.outcomes if isinstance(each, Published)]
        if waits:
            mean, longest = sum(waits) / len(waits) + result.duration, max(waits) + result.duration
            self._meter.timing("publish.latency_ms", mean * 1000, self._tags)
            self._meter.timing("publish.latency_max_ms", longest * 1000, self._tags)

    def _is_news(self, error: BaseException, failures: int) -> bool:
        """Not a database that is just restarting, and not the same error once per tick."""
        if isinstance(error, StoreError) and failures == 1:
            return False
        kind = (type(error), _location(error))
        if kind in self._reported:
            return False
        self._reported[kind] = monotonic()
        return True

    def _broker(self, result: BatchResult) -> None:
        """Said when the broker goes and when it comes back, not for each batch in between."""
        if result.outage and not self._away:
            self._log(
                logging.WARNING,
                "celery_outbox_broker_unavailable",
                f"{result.outage}; rows wait, no retry is spent",
                rows=result.deferred,
            )
        elif self._away and result.published and not result.outage:
            self._log(logging.INFO, "celery_outbox_broker_recovered", "publishing again")
        if result.outage:
            self.last_error, self._away = result.outage, True
        elif result.published:
            self._away = False

    def _failure(self, outcome: Retry | Dead) -> None:
        """In the context of the caller, so that its request id stands in the line."""
        with tracing.bound(outcome.message):
            self._tell_failure(outcome)

    def _tell_failure(self, outcome: Retry | Dead) -> None:
        self.last_error = outcome.error
        message = outcome.message
        fields: dict[str, Any] = {
            "task_id": message.task_id,
            "task_name": message.task_name,
            "retries": _attempts(outcome),
            "error": outcome.error,
        }
        if isinstance(outcome, Dead):
            self._log(
                logging.ERROR,
                "celery_outbox_dead_letter",
                f"{message.task_name}[{message.task_id}] is a dead letter now: {outcome.error}",
                **fields,
            )
        else:
            self._log(
                logging.WARNING,
                "celery_outbox_publish_failed",
                f"{message.task_name}[{message.task_id}]: {outcome.error}; again in "
                f"{outcome.delay:.0f} s",
                delay=outcome.delay,
                **fields,
            )

    def _log(
        self,
        level: int,
        event: str,
        text: str,
        *,
        to: logging.Logger = logger,
        exc_info: BaseException | None = None,
        **fields: Any,
    ) -> None:
        # The event's name is part of the template: tools group log lines by that.
        to.log(
            level,
            f"{event}: %s",
            printable(text),
            exc_info=exc_info,
            extra={"event": event, **self._fields, **fields},
        )


def _attempts(outcome: Retry | Dead) -> int:
    """How many attempts have failed, this one included."""
    return outcome.attempts if isinstance(outcome, Dead) else outcome.message.retries + 1


def _location(error: BaseException) -> tuple[str, int] | None:
    """Where it was raised: file and line of the innermost frame."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return None if frame is None else (frame.tb_frame.f_code.co_filename, frame.tb_lineno)
