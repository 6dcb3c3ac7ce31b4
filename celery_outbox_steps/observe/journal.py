"""The events of a relay, and the one place where they become log lines and counters.

The relay's service reports here and does not deal with logging or vendors. The journal passes
results on to the recorders. Log lines say what happens next; `celery_outbox_steps.observe.log` has
the table of them. Payloads are never logged. An idle relay logs nothing.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.errors import StoreError, describe
from celery_outbox_steps.messages import BatchResult, Dead, Expired, Retry
from celery_outbox_steps.observe.log import ERROR_LOGGER, log
from celery_outbox_steps.observe.recorder import NO_RECORDERS

if TYPE_CHECKING:
    from celery_outbox_steps.fleet import Pause
    from celery_outbox_steps.messages import ClaimedMessage
    from celery_outbox_steps.observe.recorder import Recorders
    from celery_outbox_steps.store import Sample

RATE_WINDOW = 60.0
REPORT_AGAIN_AFTER = 600.0
"""Seconds after which an error that recurs is reported as a new one."""
HOLDS_ITS_KEY = ", and later messages of its key wait until it is replayed or discarded"


class Journal:
    """The record of one relay. `destination`: what it publishes to, if not to the app's broker."""

    def __init__(
        self,
        database: str,
        relay_id: str,
        recorders: Recorders = NO_RECORDERS,
        destination: str | None = None,
    ) -> None:
        self.relay_id = relay_id
        self._database = database
        self._destination = destination
        self._fields: dict[str, Any] = {"database": database, "relay": relay_id}
        if destination is not None:
            self._fields["destination"] = destination
        self._recorders = recorders
        self._reported: dict[tuple[Any, ...], float] = {}
        self._outage_began: float | None = None
        self._published: deque[tuple[float, int]] = deque()
        self._published_lock = Lock()  # remote control reads it from another thread
        self.counters: Counter[str] = Counter()
        self.last_error: str | None = None
        self.last_published: float | None = None

    def started(self, **fields: Any) -> None:
        self._event("celery_outbox_relay_started", **fields)

    def stopped(self, **fields: Any) -> None:
        self._event("celery_outbox_relay_stopped", **fields)

    def placed(self, state: str, *, at_work: bool) -> None:
        """The relay got its place in the fleet, or another one than before."""
        if at_work:
            self._event("celery_outbox_relay_at_work")
        else:
            self._event("celery_outbox_relay_standing_by", state, state=state)

    def paused(self, reason: str) -> None:
        self._event("celery_outbox_relay_paused", reason, reason=reason)

    def outbox_paused(self, pause: Pause) -> None:
        """The outbox, or in the journal of a destination only that, is paused for every relay."""
        by, reason, to = pause.paused_by, pause.reason, self._destination
        fields = {"paused_by": by, "reason": reason}
        if to is None:
            self._event("celery_outbox_paused", by, reason, **fields)
        else:
            self._event("celery_outbox_destination_paused", to, by, reason, **fields)

    def outbox_resumed(self) -> None:
        if self._destination is None:
            self._event("celery_outbox_resumed")
        else:
            self._event("celery_outbox_destination_resumed", self._destination)

    def resumed(self) -> None:
        self._event("celery_outbox_relay_resumed")

    def batch(self, result: BatchResult) -> None:
        """Count and log what one tick did."""
        if not result.claimed:
            return
        self._count(result)
        self._recorders.report_batch(self._database, result)
        self._note_outage(result)
        for outcome in result.outcomes:
            if isinstance(outcome, (Retry, Dead)):
                self._note_failure(outcome)
            elif isinstance(outcome, Expired):
                self._note_expired(outcome.message)
        if result.fenced:
            self._event("celery_outbox_fenced", rows=result.fenced)

    def sampled(self, sample: Sample) -> None:
        self._recorders.report_sample(self._database, sample)

    def failed(self, error: BaseException, failures: int, pause: float) -> None:
        """The loop itself failed: the database is down, or there is a bug."""
        self.counters["errors"] += 1
        self.last_error = describe(error)
        is_new = self._is_new(error, failures)
        if is_new:
            self._recorders.report_error(error, ERROR_LOGGER, self._fields)
        self._event(
            "celery_outbox_relay_error",
            self.last_error,
            pause,
            level=logging.ERROR if is_new else logging.WARNING,
            exc_info=error if is_new and not isinstance(error, StoreError) else None,
            failures=failures,
            pause=pause,
        )

    def recovered(self, failures: int) -> None:
        since = monotonic() - REPORT_AGAIN_AFTER
        self._reported = {kind: at for kind, at in self._reported.items() if at > since}
        self._event("celery_outbox_relay_recovered", failures=failures)

    def rates_changed(self, rows: int) -> None:
        self._event("celery_outbox_rates_changed", rows, rows=rows)

    def liveness_failed(self, error: Exception) -> None:
        """Logged once: a full disk must not fill the log as well."""
        if not self.counters["liveness_errors"]:
            self._event("celery_outbox_liveness_failed", str(error))
        self.counters["liveness_errors"] += 1

    @property
    def away_seconds(self) -> float:
        """For how long the broker has accepted nothing; 0 if it did, as far as was tried."""
        began = self._outage_began
        return 0.0 if began is None else monotonic() - began

    def rate(self) -> float:
        """Messages published per second over the last minute. Callable from any thread."""
        oldest = monotonic() - RATE_WINDOW
        with self._published_lock:
            return sum(count for at, count in self._published if at >= oldest) / RATE_WINDOW

    def _count(self, result: BatchResult) -> None:
        self.counters.update(
            batches=1,
            claimed=result.claimed,
            published=result.published,
            failed=result.retried,
            dead=result.dead,
            deferred=result.deferred,
            expired=result.expired,
            released=result.released,
            fenced=result.fenced,
        )
        if result.published:
            self.last_published = monotonic()
            with self._published_lock:
                self._published.append((self.last_published, result.published))
                while self._published[0][0] < self.last_published - RATE_WINDOW:
                    self._published.popleft()

    def _is_new(self, error: BaseException, failures: int) -> bool:
        """Whether to report it: not while a database restarts, nor the same error in each tick."""
        if isinstance(error, StoreError) and failures == 1:
            return False
        kind = (type(error), _location(error))
        if kind in self._reported:
            return False
        self._reported[kind] = monotonic()
        return True

    def _note_outage(self, result: BatchResult) -> None:
        """Log the beginning and the end of an outage, not each batch in between."""
        if result.outage and self._outage_began is None:
            self._note_unavailable(result)
        elif self._outage_began is not None and result.published and not result.outage:
            self._note_available()
        if result.outage:
            self.last_error = result.outage
            self._outage_began = self._outage_began or monotonic()
        elif result.published:
            self._outage_began = None

    def _note_unavailable(self, result: BatchResult) -> None:
        why, rows, to = result.outage, result.deferred, self._destination
        if to is None:
            self._event("celery_outbox_broker_unavailable", why, rows=rows)
        else:
            self._event("celery_outbox_destination_unavailable", to, why, rows=rows)

    def _note_available(self) -> None:
        if self._destination is None:
            self._event("celery_outbox_broker_recovered")
        else:
            self._event("celery_outbox_destination_recovered", self._destination)

    def _note_failure(self, outcome: Retry | Dead) -> None:
        """Log a failure in the caller's context, so that the line has the caller's request id."""
        message, self.last_error = outcome.message, outcome.error
        fields: dict[str, Any] = {
            "task_id": message.task_id,
            "task_name": message.task_name,
            "retries": _attempts(outcome),
            "error": outcome.error,
        }
        which = (message.task_name, self._named(message))
        with self._recorders.about(message):
            if isinstance(outcome, Dead):
                holds = HOLDS_ITS_KEY if message.order_key else ""
                self._event("celery_outbox_dead_letter", *which, holds, outcome.error, **fields)
            else:
                args, delay = (*which, outcome.error), outcome.delay
                self._event("celery_outbox_publish_failed", *args, delay, delay=delay, **fields)

    def _note_expired(self, message: ClaimedMessage) -> None:
        name, task_id = message.task_name, message.task_id
        with self._recorders.about(message):
            args = (name, self._named(message))
            self._event("celery_outbox_expired", *args, task_name=name, task_id=task_id)

    def _named(self, message: ClaimedMessage) -> str:
        """Which message, for people."""
        to = "" if self._destination is None else f" for {self._destination}"
        return f"{message.task_id}{to}"

    def _event(self, name: str, *args: Any, **options: Any) -> None:
        log(name, *args, **self._fields, **options)


def _attempts(outcome: Retry | Dead) -> int:
    """The number of failed attempts, including this one."""
    return outcome.attempts if isinstance(outcome, Dead) else outcome.message.retries + 1


def _location(error: BaseException) -> tuple[str, int] | None:
    """Where it was raised: file and line of the innermost frame."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return None if frame is None else (frame.tb_frame.f_code.co_filename, frame.tb_lineno)
