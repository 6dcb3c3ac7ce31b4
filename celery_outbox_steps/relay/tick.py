"""One tick of the relay is one function: claim → publish → settle.

`run_once()` does not wait, log or count; it returns what it did, and the service does the rest. No
transaction is open between claim and settle. If the settle fails, the batch stays in hand and the
next tick settles it before it publishes another: a running relay does not publish a row again
because the database was down. The next step of the path is `celery_outbox_steps.relay.publish`.
"""

from __future__ import annotations

import os
import socket
import uuid
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.envelope import open_envelope
from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.messages import BatchResult
from celery_outbox_steps.observe.recorder import NO_RECORDERS, Recorders, untraced
from celery_outbox_steps.relay.policy import Breaker, boot_clock
from celery_outbox_steps.relay.prefetch import Claims
from celery_outbox_steps.relay.publish import PublishStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_outbox_steps.publishers.base import Publisher
    from celery_outbox_steps.relay.batch import Batch
    from celery_outbox_steps.relay.prefetch import PrefetchThread
    from celery_outbox_steps.relay.publish import OpenRow
    from celery_outbox_steps.settings import RelayConfig
    from celery_outbox_steps.store import LaneStore


def new_relay_id() -> str:
    """The value of `claimed_by`: host, process, and a random part for each relay of a process."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


def never() -> bool:
    return False


class Relay:
    """Moves rows from one Store to the broker. Used by one thread.

    With `prefetch`, that thread claims the next batch while one is published. Once
    `should_stop_sending()` is true, rows that are not sent yet are released. `open_row` makes the
    message of a row.
    """

    def __init__(
        self,
        app: Any,
        store: LaneStore,
        publisher: Publisher,
        config: RelayConfig,
        relay_id: str,
        *,
        should_stop_sending: Callable[[], bool] = never,
        prefetch: PrefetchThread | None = None,
        clock: Callable[[], float] = boot_clock,
        recorders: Recorders = NO_RECORDERS,
        open_row: OpenRow = open_envelope,
    ) -> None:
        self.recorders = recorders
        self.breaker = Breaker(config.broker_outage_cooldown)
        self._store = store
        self._publisher = publisher
        self._relay_id = relay_id
        self._batch_size = config.batch_size
        self._should_stop_sending = should_stop_sending
        self._clock = clock
        self._claims = Claims(
            store, config, relay_id, clock=clock, thread=prefetch, recorders=recorders
        )
        self._publish_step = PublishStep(
            app, publisher, self._claims, should_stop_sending, open_row
        )
        self._batch: Batch | None = None

    @property
    def in_hand(self) -> bool:
        """Whether the relay holds rows that have to be settled or released."""
        return self._batch is not None or self._claims.ahead is not None

    @untraced
    def run_once(self) -> BatchResult:
        """Settle the batch in hand; if there is none, claim, publish and settle the next."""
        try:
            if self._batch is None:
                self._publish_next()
            return self._settle_batch()
        except Exception as exc:
            self._failed(exc)
            raise

    @untraced
    def settle_in_hand(self) -> BatchResult:
        """Settle the batch in hand, release what was not sent. May be repeated after an error."""
        self._release_ahead()
        try:
            return self._settle_batch()
        except Exception as exc:
            self._failed(exc)
            raise

    def leave_orphans(self) -> None:
        """The database was away, and other relays may have to settle what they published."""
        self._claims.leave_orphans()

    def close(self) -> None:
        """End the helper thread, forget the broker's channels, close the database session."""
        self._claims.close()
        self._publisher.close()
        self._store.close()

    def _publish_next(self) -> None:
        allowed = self.breaker.allowance(self._batch_size, self._clock())
        # In hand from now on: if anything below raises, the next tick releases the rows.
        batch = self._batch = self._claims.next_batch(allowed)
        if batch is None or self._should_stop_sending():
            return
        self._claims.keep_lease(batch)  # it may have waited for its turn, or the process was frozen
        self._claims.pace(batch)
        is_probe = self.breaker.is_open
        claiming_ahead = nullcontext() if is_probe else self._claims.claiming_ahead_of(batch)
        with claiming_ahead, self.recorders.publishing(batch):
            self._publish_step.publish_batch(batch)
        if batch.broker_answered:
            self.breaker.success()
        elif batch.outage:
            self.breaker.outage(self._clock())
        # Rows can be in both batches if the process was frozen until the lease of this one expired.
        ahead = self._claims.ahead
        if batch.outage or batch.unsent or (ahead is not None and batch.must_precede(ahead)):
            self._release_ahead()

    def _settle_batch(self) -> BatchResult:
        batch = self._batch
        if batch is None:
            return BatchResult()
        # If the settle is repeated after an outage, the outage does not count.
        batch.duration = batch.duration or self._clock() - batch.claimed_at
        if batch.unsent:
            batch.defer_suspects()
        batch.write_outcomes(self._store, self._relay_id, self.recorders)
        if batch.unsent:
            self._store.release(list(batch.unsent), self._relay_id)
        self._batch = None
        return batch.result()

    def _failed(self, error: Exception) -> None:
        if isinstance(error, StoreError):
            self._claims.leave_orphans()
        # If the database crashed, it may have lost the claim of the next batch as well.
        self._release_ahead()

    def _release_ahead(self) -> None:
        """Have the next settle release the batch that was claimed ahead, too."""
        ahead = self._claims.take_ahead()
        if self._batch is None:
            self._batch = ahead
        elif ahead is not None:
            self._batch.unsent.update(ahead.unsent)
