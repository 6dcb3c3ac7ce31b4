"""One tick of the relay is one function: claim → publish → settle.

`run_once()` does no waiting, logging or counting; it returns what it did, and the service around
it does the rest. Between claim and settle no transaction is open. What was published is settled
whatever happens: if the database is away at that moment, the batch stays in hand and the next tick
settles it before it publishes another, so that a living relay never publishes a row twice.

While rows pile up, the database and the broker work at the same time: the next batch is claimed as
this one is published. It is given back if there is no reason to go on.
"""

from __future__ import annotations

import os
import random
import socket
import uuid
from collections import Counter
from contextlib import contextmanager
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery_outbox_steps import tracing
from celery_outbox_steps.classify import Verdict, classify, describe
from celery_outbox_steps.envelope import open_envelope, size_of
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
from celery_outbox_steps.suppression import untraced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from celery_outbox_steps.config import RelayConfig
    from celery_outbox_steps.publishers.base import Publisher
    from celery_outbox_steps.store import Store

OUTAGE_DELAY = 1.0
"""Seconds until a row is due again after an outage. The breaker is what keeps the relay calm."""
LARGE = 16 * 1024 * 1024
"""Bytes of a batch that is not worth a second one in memory."""


def new_relay_id() -> str:
    """Who holds a row: host, process, and enough chance to tell two relays of a process apart."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


def never() -> bool:
    return False


class _Batch:
    """Claimed rows that still have to be settled or given back."""

    def __init__(
        self, rows: list[ClaimedMessage], claimed_at: float, lease: float, *, full: bool
    ) -> None:
        self.rows = rows
        self.claimed_at = claimed_at
        self.send_before = claimed_at + lease
        """Later, others may hold the rows: say the claim waited for a lock."""
        self.full = full
        self.outcomes: list[Outcome] = []
        self.unsent = {row.id: row for row in rows}
        """Those that have no outcome."""
        self.duration = 0.0
        self.fenced: int | None = None
        """None until the outcomes are settled."""

    @property
    def outage(self) -> str:
        return next((each.error for each in self.outcomes if isinstance(each, Deferred)), "")

    @property
    def is_large(self) -> bool:
        return sum(map(size_of, self.rows)) > LARGE

    def add(self, outcome: Outcome) -> None:
        del self.unsent[outcome.message.id]
        self.outcomes.append(outcome)


class Relay:
    """Moves rows from one Store to the broker. Used by one thread.

    With `claim_ahead` a second one uses the Store while the first has nothing to do with it.
    """

    def __init__(
        self,
        app: Any,
        store: Store,
        publisher: Publisher,
        config: RelayConfig,
        relay_id: str,
        *,
        hurry: Callable[[], bool] = never,
        claim_ahead: bool = False,
    ) -> None:
        self.breaker = Breaker(config.broker_outage_cooldown)
        self._app = app
        self._store = store
        self._publisher = publisher
        self._config = config
        self._relay_id = relay_id
        self._hurry = hurry  # True: send no more, give back what is left
        self._claim_ahead = claim_ahead
        self._backoff = Backoff(config.backoff_time, config.max_backoff)
        self._jitter = 0.0  # drawn once per batch: equal failures then share a statement
        self._batch: _Batch | None = None
        self._ahead: _Batch | None = None

    @property
    def in_hand(self) -> bool:
        """Whether rows are held that have to be settled or given back."""
        return self._batch is not None or self._ahead is not None

    @untraced
    def run_once(self) -> BatchResult:
        """Settle the batch in hand; without one publish and settle the next, if there is one."""
        if self._batch is None:
            self._take_next()
        return self._finish()

    @untraced
    def settle(self) -> BatchResult:
        """Settle the batch in hand, give back what was not sent. Repeatable until it succeeds."""
        self._drop_ahead()
        return self._finish()

    def close(self) -> None:
        """Forget the broker's channels and close the database session."""
        self._publisher.close()
        self._store.close()

    def _take_next(self) -> None:
        # In hand from now on: if anything below raises, the next tick gives the rows back.
        batch = self._batch = self._next()
        if batch is None or monotonic() >= batch.send_before:
            return
        self._jitter = random.random()  # noqa: S311
        with tracing.around(batch.rows), self._claiming_ahead(batch):
            self._publish(batch)
        batch.duration = monotonic() - batch.claimed_at
        self._tell_breaker(batch)
        if batch.outage or batch.unsent:
            self._drop_ahead()

    def _finish(self) -> BatchResult:
        batch = self._batch
        if batch is None:
            return BatchResult()
        if batch.fenced is None:
            batch.fenced = self._store.settle(batch.outcomes, self._relay_id)
        if batch.unsent:
            self._store.release(list(batch.unsent), self._relay_id)
        self._batch = None
        return _result(batch)

    def _next(self) -> _Batch | None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return ahead
        limit = self.breaker.allowance(self._config.batch_size, monotonic())
        return self._claim(limit) if limit else None

    def _claim(self, limit: int) -> _Batch | None:
        start, lease = monotonic(), self._config.stale_timeout
        rows = self._store.claim(limit, lease, self._relay_id)
        full = len(rows) == self._config.batch_size
        return _Batch(rows, start, lease, full=full) if rows else None

    @contextmanager
    def _claiming_ahead(self, batch: _Batch) -> Iterator[None]:
        """Claim the next batch while the block runs, if there is surely one."""
        if not self._claim_ahead or not batch.full or batch.is_large or self._hurry():
            yield
            return
        helper = Thread(target=self._take_ahead, name="outbox-relay-claim", daemon=True)
        helper.start()
        try:
            yield
        finally:
            helper.join()

    @untraced
    def _take_ahead(self) -> None:
        try:
            ahead = self._claim(self._config.batch_size)
        except Exception:  # noqa: BLE001
            return  # the next tick claims again, and then it is said what is wrong
        if ahead is not None:
            ahead.send_before -= self._config.send_timeout  # it starts late
            self._ahead = ahead

    def _drop_ahead(self) -> None:
        """Have what was claimed ahead given back with the batch in hand, or as one."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return
        if self._batch is None:
            self._batch = ahead
        else:
            self._batch.unsent.update(ahead.unsent)

    def _tell_breaker(self, batch: _Batch) -> None:
        if batch.outage:
            self.breaker.outage(monotonic())
        elif any(isinstance(each, (Published, Retry)) for each in batch.outcomes):
            self.breaker.success()

    def _publish(self, batch: _Batch) -> None:
        """Give every row an outcome that is answered for. The others stay unsent."""
        if self._hurry():
            return
        opened: list[ClaimedMessage] = []
        messages = self._open(batch, opened, self._app.now())
        try:
            for position, error in self._publisher.publish(messages, self._config.send_timeout):
                batch.add(self._judge(opened[position], error))
                if self._publisher.lazy and self._hurry():
                    return
        except Exception as exc:  # noqa: BLE001  whatever it is, the rows need an outcome
            for row in list(batch.unsent.values()):
                batch.add(self._judge(row, exc, alone=False))

    def _open(
        self, batch: _Batch, opened: list[ClaimedMessage], now: datetime
    ) -> Iterator[Message]:
        """The messages, each made when the publisher takes it: all of them at once are large.

        A row that holds none is dead, and its neighbours are not.
        """
        held = monotonic() - batch.claimed_at
        for row in batch.rows:
            try:
                message = open_envelope(row, now, held)
                tracing.restore(row, message)
            except Exception as exc:  # noqa: BLE001, PERF203  a hostile row stops nobody else
                batch.add(self._judge(row, exc))
            else:
                opened.append(row)
                yield message

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
