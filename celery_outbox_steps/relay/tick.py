"""One tick of the relay is one function: claim → publish → settle.

`run_once()` does no waiting, logging or counting; it returns what it did, and the service around
it does the rest. Between claim and settle no transaction is open. What was published is settled
whatever happens: if the database is away at that moment, the batch stays in hand and the next tick
settles it before it publishes another, so that a living relay never publishes a row twice.

While rows pile up, the database and the broker work at the same time: the next batch is claimed as
this one is published. It is given back if there is no reason to go on. The next step of the path is
`celery_outbox_steps.relay.publish`.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections import Counter
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.messages import BatchResult, Dead, Deferred, Published, Retry
from celery_outbox_steps.observe.recorder import NO_RECORDERS, Recorders, untraced
from celery_outbox_steps.relay.batch import Batch
from celery_outbox_steps.relay.policy import Breaker, time_passed
from celery_outbox_steps.relay.publish import PublishStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_outbox_steps.publishers.base import Publisher
    from celery_outbox_steps.settings import RelayConfig
    from celery_outbox_steps.store import Store

MAX_BYTES = 16 * 1024 * 1024
"""Bytes of messages per claim: a batch of large ones has fewer rows, and fits into memory."""


def new_relay_id() -> str:
    """Who holds a row: host, process, and enough chance to tell two relays of a process apart."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


def never() -> bool:
    return False


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
        clock: Callable[[], float] = time_passed,
        recorders: Recorders = NO_RECORDERS,
    ) -> None:
        self.recorders = recorders
        self.breaker = Breaker(config.broker_outage_cooldown)
        self._store = store
        self._publisher = publisher
        self._config = config
        self._relay_id = relay_id
        self._hurry = hurry  # True: send no more, give back what is left
        self._claim_ahead = claim_ahead
        self._clock = clock
        self._publish = PublishStep(
            app, store, publisher, config, relay_id, hurry=hurry, clock=clock, recorders=recorders
        )
        self._limit = config.batch_size
        self._batch: Batch | None = None
        self._ahead: Batch | None = None

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
        if batch is None or self._clock() + self._config.send_timeout >= batch.send_before:
            return  # the claim waited for a lock, or the process was frozen
        with self.recorders.publishing(batch.rows), self._claiming_ahead(batch):
            self._publish.run(batch)
        batch.duration = self._clock() - batch.claimed_at
        self._tell_breaker(batch)
        if batch.outage or batch.unsent or self._ahead_repeats(batch):
            self._drop_ahead()

    def _finish(self) -> BatchResult:
        batch = self._batch
        if batch is None:
            return BatchResult()
        batch.keep_suspects_apart()
        try:
            batch.settle(self._store, self._relay_id, self.recorders)
            if batch.unsent:
                self._store.release(list(batch.unsent), self._relay_id)
        except Exception:
            # If the database crashed, it may have forgotten the claim of the next batch as well.
            self._drop_ahead()
            raise
        self._batch = None
        return _result(batch)

    def _next(self) -> Batch | None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return ahead
        limit = self.breaker.allowance(self._limit, self._clock())
        # With nothing in hand, rows in this relay's name come from a claim whose answer was lost.
        return self._claim(limit, adopt=True) if limit else None

    def _claim(self, limit: int, *, adopt: bool = False) -> Batch | None:
        start, lease = self._clock(), self._config.stale_timeout
        try:
            rows = self._store.claim(limit, lease, self._relay_id, max_bytes=MAX_BYTES, adopt=adopt)
        except StoreError:
            raise
        except Exception:
            self._limit = max(1, limit // 2)  # perhaps the batch did not fit into memory
            raise
        full = len(rows) == limit
        self._limit = min(self._limit * 2, self._config.batch_size)
        return Batch(rows, start, lease, full=full) if rows else None

    @contextmanager
    def _claiming_ahead(self, batch: Batch) -> Iterator[None]:
        """Claim the next batch while the block runs, if there is surely one.

        Not beside rows that may kill the relay: the Store is used by one thread at a time.
        """
        useful = self._claim_ahead and batch.full and not self.breaker.is_open
        if not useful or batch.may_kill or self._hurry():
            yield
            return
        helper = Thread(target=self._take_ahead, name="outbox-relay-claim", daemon=True)
        try:
            helper.start()
        except RuntimeError:  # no more threads to be had: then without a head start
            yield
            return
        try:
            yield
        finally:
            helper.join()

    @untraced
    def _take_ahead(self) -> None:
        try:
            ahead = self._claim(self._limit)
        except Exception:  # noqa: BLE001
            return  # the next tick claims again and reports the error
        self._ahead = ahead

    def _ahead_repeats(self, batch: Batch) -> bool:
        """Whether the lease of this batch ended before it was settled: the process was frozen."""
        return self._ahead is not None and self._ahead.shares_rows_with(batch)

    def _drop_ahead(self) -> None:
        """Have what was claimed ahead given back with the batch in hand, or as one."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return
        if self._batch is None:
            self._batch = ahead
        else:
            self._batch.unsent.update(ahead.unsent)

    def _tell_breaker(self, batch: Batch) -> None:
        if any(isinstance(each, (Published, Retry)) for each in batch.outcomes):
            self.breaker.success()
        elif batch.outage:
            self.breaker.outage(self._clock())


def _result(batch: Batch) -> BatchResult:
    count = Counter(type(outcome) for outcome in batch.outcomes)
    return BatchResult(
        outcomes=tuple(batch.outcomes),
        claimed=len(batch.outcomes) + len(batch.unsent),
        published=count[Published],
        retried=count[Retry],
        dead=count[Dead],
        deferred=count[Deferred],
        released=len(batch.unsent),
        fenced=batch.fenced,
        full=batch.full,
        outage=batch.outage,
        duration=batch.duration,
    )
