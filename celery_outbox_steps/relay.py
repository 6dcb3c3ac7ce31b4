"""One tick of the relay is one function: claim → publish → settle.

`run_once()` does no waiting, logging or counting; it returns what it did, and the service around
it does the rest. Between claim and settle no transaction is open. What was published is settled
whatever happens: if the database is away at that moment, the outcomes are kept and settled first
thing in the next tick, so that a living relay never publishes a row twice.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

from celery_outbox_steps.classify import Verdict, classify, describe
from celery_outbox_steps.config import RelayConfig
from celery_outbox_steps.envelope import open_envelope
from celery_outbox_steps.errors import EnvelopeError
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
from celery_outbox_steps.publishers.base import Publisher
from celery_outbox_steps.store import Store

OUTAGE_DELAY = 1.0
"""Seconds until a row is due again after an outage. The breaker is what keeps the relay calm."""


def never() -> bool:
    return False


class Relay:
    """Moves rows from one Store to the broker. Used by one thread."""

    def __init__(
        self, app: Any, store: Store, publisher: Publisher, config: RelayConfig, relay_id: str,
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
        self._unsettled: list[Outcome] = []
        self._unreleased: list[int] = []

    def run_once(self) -> BatchResult:
        """Publish the next batch of due rows, if the breaker and the clock allow one."""
        start = monotonic()
        self._write_leftovers()
        limit = self.breaker.allowance(self._config.batch_size, start)
        rows = self._claim(limit) if limit else []
        if not rows:
            return BatchResult()
        outcomes, unsent = self._publish(rows)
        self._unsettled, self._unreleased = outcomes, unsent
        outage = next((each.error for each in outcomes if isinstance(each, Deferred)), "")
        self._tell_breaker(outcomes, outage)
        fenced = self._write_leftovers()
        return _result(outcomes, len(unsent), fenced, outage=outage,
                       full=len(rows) == self._config.batch_size, duration=monotonic() - start)

    def close(self) -> None:
        """Settle and release what an earlier failure left, and forget the broker's channels."""
        try:
            self._write_leftovers()
        finally:
            self._publisher.close()
            self._store.close()

    def _claim(self, limit: int) -> list[ClaimedMessage]:
        return self._store.claim(limit, self._config.stale_timeout, self._relay_id)

    def _write_leftovers(self) -> int:
        """Settle and release what is still in hand. Repeatable: both are fenced and idempotent."""
        fenced = 0
        if self._unsettled:
            fenced = self._store.settle(self._unsettled, self._relay_id)
            self._unsettled = []
        if self._unreleased:
            self._store.release(self._unreleased, self._relay_id)
            self._unreleased = []
        return fenced

    def _tell_breaker(self, outcomes: list[Outcome], outage: str) -> None:
        if outage:
            self.breaker.outage(monotonic())
        elif any(isinstance(each, (Published, Retry)) for each in outcomes):
            self.breaker.success()

    def _publish(self, rows: list[ClaimedMessage]) -> tuple[list[Outcome], list[int]]:
        """An outcome for every row that got an answer, and the ids of those that were not sent."""
        outcomes: list[Outcome] = []
        sendable, messages = self._open(rows, outcomes)
        unanswered = {row.id: row for row in sendable}
        renew_at = monotonic() + self._config.stale_timeout / 3
        try:
            for index, error in self._publisher.publish(messages, self._config.send_timeout):
                row = sendable[index]
                del unanswered[row.id]
                outcomes.append(self._judge(row, error))
                if self._hurry():
                    break
                if monotonic() > renew_at:
                    self._store.renew(list(unanswered), self._config.stale_timeout, self._relay_id)
                    renew_at = monotonic() + self._config.stale_timeout / 3
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
            except EnvelopeError as exc:
                outcomes.append(Dead(row, describe(exc)))
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
        return Retry(row, reason, self._backoff.delay(row.retries, random.random()))  # noqa: S311


def _result(
    outcomes: list[Outcome], released: int, fenced: int, *, outage: str, full: bool,
    duration: float,
) -> BatchResult:
    count = Counter(type(outcome) for outcome in outcomes)
    return BatchResult(
        outcomes=tuple(outcomes), claimed=len(outcomes) + released, published=count[Published],
        retried=count[Retry], dead=count[Dead], deferred=count[Deferred], released=released,
        fenced=fenced, full=full, outage=outage, duration=duration,
    )
