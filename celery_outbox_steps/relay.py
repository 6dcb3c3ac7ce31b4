"""One tick of the relay is one function: claim → publish → settle.

`run_once()` does no waiting, logging or counting; it returns what it did, and the service around
it does the rest. Between claim and settle no transaction is open. What was published is settled
whatever happens: if the database is away at that moment, the batch stays in hand and the next tick
settles it before it claims another, so that a living relay never publishes a row twice.
"""

from __future__ import annotations

import os
import random
import socket
import uuid
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery_outbox_steps import tracing
from celery_outbox_steps.classify import Verdict, classify, describe
from celery_outbox_steps.envelope import open_envelope
from celery_outbox_steps.messages import (
    BatchResult,
    ClaimedMessage,
    Dead,
    Deferred,
    Message,
    Outcome,
    Published,
    Retry,
)
from celery_outbox_steps.policy import Backoff, Breaker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_outbox_steps.config import RelayConfig
    from celery_outbox_steps.publishers.base import Publisher
    from celery_outbox_steps.store import Store

OUTAGE_DELAY = 1.0
"""Seconds until a row is due again after an outage. The breaker is what keeps the relay calm."""


def new_relay_id() -> str:
    """Who holds a row: host, process, and enough chance to tell two relays of a process apart."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


def never() -> bool:
    return False


class _Batch:
    """Claimed rows that still have to be settled or given back."""

    def __init__(self, rows: list[ClaimedMessage], *, full: bool) -> None:
        self.outcomes: list[Outcome] = []
        self.unsent = [row.id for row in rows]
        self.full = full
        self.duration = 0.0
        self.fenced: int | None = None
        """None until the outcomes are settled."""

    @property
    def outage(self) -> str:
        return next((each.error for each in self.outcomes if isinstance(each, Deferred)), "")


class Relay:
    """Moves rows from one Store to the broker. Used by one thread."""

    def __init__(
        self,
        app: Any,
        store: Store,
        publisher: Publisher,
        config: RelayConfig,
        relay_id: str,
        *,
        hurry: Callable[[], bool] = never,
    ) -> None:
        self.breaker = Breaker(config.broker_outage_cooldown)
        self._app = app
        self._store = store
        self._publisher = publisher
        self._config = config
        self._relay_id = relay_id
        self._hurry = hurry  # True: send no more, give back what is left
        self._backoff = Backoff(config.backoff_time, config.max_backoff)
        self._jitter = 0.0  # drawn once per batch: equal failures then share a statement
        self._batch: _Batch | None = None

    @property
    def in_hand(self) -> bool:
        """Whether a batch is published and not yet settled, because the database was away."""
        return self._batch is not None

    def run_once(self) -> BatchResult:
        """Settle the batch in hand; without one publish and settle the next, if there is one."""
        if self._batch is None:
            self._take_next()
        return self.settle()

    def settle(self) -> BatchResult:
        """Write what became of the batch in hand, if any. Repeatable until it succeeds."""
        batch = self._batch
        if batch is None:
            return BatchResult()
        if batch.fenced is None:
            batch.fenced = self._store.settle(batch.outcomes, self._relay_id)
        if batch.unsent:
            self._store.release(batch.unsent, self._relay_id)
        self._batch = None
        return _result(batch)

    def close(self) -> None:
        """Forget the broker's channels and close the database session."""
        self._publisher.close()
        self._store.close()

    def _take_next(self) -> None:
        start = monotonic()
        limit = self.breaker.allowance(self._config.batch_size, start)
        rows = self._claim(limit) if limit else []
        if not rows:
            return
        # In hand from now on: if anything below raises, the next tick gives them back.
        batch = self._batch = _Batch(rows, full=len(rows) == self._config.batch_size)
        if monotonic() - start >= self._config.stale_timeout:
            return  # it waited for a lock, and the lease may be over: others may hold the rows
        self._jitter = random.random()  # noqa: S311
        with tracing.around(rows):
            batch.outcomes, batch.unsent = self._publish(rows)
        batch.duration = monotonic() - start
        self._tell_breaker(batch)

    def _claim(self, limit: int) -> list[ClaimedMessage]:
        return self._store.claim(limit, self._config.stale_timeout, self._relay_id)

    def _tell_breaker(self, batch: _Batch) -> None:
        if batch.outage:
            self.breaker.outage(monotonic())
        elif any(isinstance(each, (Published, Retry)) for each in batch.outcomes):
            self.breaker.success()

    def _publish(self, rows: list[ClaimedMessage]) -> tuple[list[Outcome], list[int]]:
        """An outcome for every row that got an answer, and the ids of those that were not sent."""
        if self._hurry():
            return [], [row.id for row in rows]
        outcomes: list[Outcome] = []
        sendable, messages = self._open(rows, outcomes)
        unanswered = {row.id: row for row in sendable}
        try:
            for index, error in self._publisher.publish(messages, self._config.send_timeout):
                row = unanswered.pop(sendable[index].id)
                outcomes.append(self._judge(row, error))
                if self._publisher.lazy and self._hurry():
                    break
        except Exception as exc:  # noqa: BLE001  whatever it is, the rows need an outcome
            outcomes.extend(self._judge(row, exc, alone=False) for row in unanswered.values())
            unanswered = {}
        return outcomes, list(unanswered)

    def _open(
        self, rows: Iterable[ClaimedMessage], outcomes: list[Outcome]
    ) -> tuple[list[ClaimedMessage], list[Message]]:
        """Rows and their messages; a row that holds none is dead, and its neighbours are not."""
        now = self._app.now()
        sendable, messages = [], []
        for row in rows:
            try:
                messages.append(open_envelope(row, now))
                sendable.append(row)
            except Exception as exc:  # noqa: BLE001, PERF203  a hostile row stops nobody else
                outcomes.append(self._judge(row, exc))
        tracing.restore(sendable, messages)
        return sendable, messages

    def _judge(
        self, row: ClaimedMessage, error: Exception | None, *, alone: bool = True
    ) -> Outcome:
        """What becomes of a row. An error that hit a whole batch is no row's permanent fault."""
        if error is None:
            return Published(row)
        verdict, reason = classify(error), describe(error)
        if verdict is Verdict.OUTAGE:
            return Deferred(row, reason, OUTAGE_DELAY)
        if (alone and verdict is Verdict.PERMANENT) or row.retries + 1 >= self._config.max_retries:
            return Dead(row, reason)
        return Retry(row, reason, self._backoff.delay(row.retries, self._jitter))


def _result(batch: _Batch) -> BatchResult:
    count = Counter(type(outcome) for outcome in batch.outcomes)
    return BatchResult(
        outcomes=tuple(batch.outcomes),
        claimed=len(batch.outcomes) + len(batch.unsent),
        published=count[Published],
        retried=count[Retry],
        dead=count[Dead],
        deferred=count[Deferred],
        released=len(batch.unsent),
        fenced=batch.fenced or 0,
        full=batch.full,
        outage=batch.outage,
        duration=batch.duration,
    )
