"""The claims of a relay: taken ahead in a helper thread or when needed, and renewed in time.

Under load the database and the broker work at the same time: the next batch is claimed while the
current one is published. The Store is still used by one thread at a time, and the helper is idle
between two ticks, when the worker may fork. An error in the helper is ignored: the next tick claims
again and reports it. The next step of the path is `Store.claim`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.observe.recorder import Recorders, untraced
from celery_outbox_steps.rates import rate_of
from celery_outbox_steps.relay.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery_outbox_steps.messages import ClaimedMessage
    from celery_outbox_steps.rates import Rate
    from celery_outbox_steps.settings import RelayConfig
    from celery_outbox_steps.store import LaneStore

SETTLE_TIME = 2.0
"""Seconds of a lease that remain for the settle after the longest wait for the broker, if the lease
is long enough for that."""
MAX_BYTES = 16 * 1024 * 1024
"""Bytes of messages per claim: a batch of large messages has fewer rows, so it fits into memory."""


class Claims:
    """The source of a relay's batches. Without a `thread` nothing is claimed ahead."""

    def __init__(
        self,
        store: LaneStore,
        config: RelayConfig,
        relay_id: str,
        *,
        clock: Callable[[], float],
        thread: PrefetchThread | None,
        recorders: Recorders,
    ) -> None:
        self.config = config
        self.clock = clock
        self.recorders = recorders
        self.ahead: Batch | None = None
        """The batch that was claimed ahead, if there is one."""
        self._store = store
        self._relay_id = relay_id
        self._thread = thread
        self._limit = config.batch_size
        self._lease = config.lease
        spare = config.lease - config.send_timeout
        self._needed = config.send_timeout + min(SETTLE_TIME, spare / 2)
        self._orphans_from = float("-inf")

    def next_batch(self, allowed: int) -> Batch | None:
        """The batch that was claimed ahead; if there is none, claim up to `allowed` rows."""
        if self.ahead is not None or not allowed:
            return self.take_ahead()
        # The relay works on no rows now: those in its name come from a claim whose answer was lost.
        return self._claim_batch(min(self._limit, allowed), adopt=True)

    def pace(self, batch: Batch) -> None:
        """Leave to the batch what the release rates allow; the Store takes the rest back."""
        if not self.config.rates:
            return
        limited: dict[Rate, list[ClaimedMessage]] = defaultdict(list)
        for row in batch.unsent.values():
            rate = rate_of(self.config.rates.values(), row.task_name)
            if rate is not None:
                limited[rate].append(row)
        for rate, rows in limited.items():
            granted = self._store.pace(rate, rows, self._relay_id)
            batch.give_back(row for row in rows if row.id not in granted)

    def take_ahead(self) -> Batch | None:
        """Hand over the batch that was claimed ahead: the caller settles or releases it."""
        ahead, self.ahead = self.ahead, None
        return ahead

    @contextmanager
    def claiming_ahead_of(self, batch: Batch) -> Iterator[None]:
        """If this batch is full, claim the next one while the block publishes this one.

        Not if this batch has rows that may kill the relay: publishing them uses the Store too.
        """
        thread = self._thread
        if thread is None or not batch.full or batch.may_kill:
            yield
            return
        started = thread.start(partial(self._claim_ahead, batch.keyed_ids))
        try:
            yield
        finally:
            if started:
                thread.wait()

    def keep_lease(self, batch: Batch) -> None:
        """Renew the lease of a batch, if it might end during the next wait for the broker.

        Rows that another relay has taken over meanwhile are not in `batch.unsent` any more.
        """
        if batch.lease_ends - self.clock() >= self._needed:
            return
        if self._thread is not None:
            self._thread.wait()
        batch.renew(self._store, self._relay_id, self._lease, self.clock())

    def begin_attempt(self, batch: Batch, row: ClaimedMessage) -> ClaimedMessage | None:
        """Write the outcomes so far, and count the attempt: see `Store.begin_attempt`."""
        batch.write_outcomes(self._store, self._relay_id, self.recorders)
        return self._store.begin_attempt(row, self._relay_id)

    def leave_orphans(self) -> None:
        """The database was away: for the time of a lease, take over no row of another relay.

        The others may have published rows that they could not settle, and do that now.
        """
        self._orphans_from = self.clock() + self._lease

    def close(self) -> None:
        """End the helper thread. The next use starts it again."""
        if self._thread is not None:
            self._thread.close()

    @untraced
    def _claim_ahead(self, in_hand: Sequence[int]) -> None:
        self.ahead = self._claim_batch(self._limit, adopt=False, in_hand=in_hand)

    def _claim_batch(self, limit: int, *, adopt: bool, in_hand: Sequence[int] = ()) -> Batch | None:
        start, lease = self.clock(), self._lease
        try:
            rows = self._store.claim(
                limit,
                lease,
                self._relay_id,
                max_bytes=MAX_BYTES,
                adopt=adopt,
                orphans=start >= self._orphans_from,
                in_hand=in_hand,
            )
        except StoreError:
            self.leave_orphans()
            raise
        except Exception:
            self._limit = max(1, limit // 2)  # perhaps the batch did not fit into memory
            raise
        self._limit = min(self._limit * 2, self.config.batch_size)
        return Batch(rows, start, lease, full=len(rows) == limit) if rows else None


class PrefetchThread:
    """A daemon thread that runs one function at a time; its owner waits for each to end.

    It is started with the first function and ended by `close()`. Used by one thread.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._function: Callable[[], None] | None = None
        self._requests = threading.Semaphore(0)
        self._idle = threading.Event()
        self._idle.set()

    def start(self, function: Callable[[], None]) -> bool:
        """Run `function` in the thread. False if the process can't have one more thread."""
        if self._thread is None:
            thread = threading.Thread(target=self._main, name="outbox-relay-prefetch", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        self._request(function)
        return True

    def wait(self) -> None:
        """Wait until the function has ended."""
        self._idle.wait()

    def close(self) -> None:
        """End the thread, after a function that is still running."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self.wait()
            self._request(None)
            thread.join()

    def _request(self, function: Callable[[], None] | None) -> None:
        self._function = function
        self._idle.clear()
        self._requests.release()

    def _main(self) -> None:
        while self._requests.acquire() and self._function is not None:
            with suppress(BaseException):  # the thread must survive to set `_idle`
                self._function()
            self._idle.set()
        self._idle.set()
