"""The publish step of a tick: every row of a batch gets an outcome, and one row's fate is its own.

Rows without a history are published together. What an interruption leaves undecided, and every row
that failed before, is published alone: a message that breaks the connection while the broker lives
is then known to be the cause. It spends a retry and ends as a dead letter; its neighbours are sent
again at most once. An outage spends nothing. The next step of the path is the Store's settle.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from celery_outbox_steps import tracing
from celery_outbox_steps.classify import describe, is_permanent
from celery_outbox_steps.envelope import open_envelope
from celery_outbox_steps.errors import Interrupted, Outage
from celery_outbox_steps.messages import Dead, Deferred, Message, Outcome, Published, Retry
from celery_outbox_steps.policy import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from celery_outbox_steps.batch import Batch
    from celery_outbox_steps.config import RelayConfig
    from celery_outbox_steps.messages import ClaimedMessage
    from celery_outbox_steps.publishers.base import Publisher
    from celery_outbox_steps.store import Store

OUTAGE_DELAY = 1.0
"""Seconds until a row is due again after an outage. The breaker is what keeps the relay calm."""
REST = 3
"""A queue that did not answer gets nothing for this many send timeouts; then one message tries."""
DOUBTS = 3
"""Interrupted messages in a row, with no proof that the broker lives, that make an outage."""


class PublishStep:
    """Turns the rows of a batch into outcomes, through one publisher. Used by one thread."""

    def __init__(
        self,
        app: Any,
        store: Store,
        publisher: Publisher,
        config: RelayConfig,
        relay_id: str,
        *,
        hurry: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._app = app
        self._store = store
        self._publisher = publisher
        self._config = config
        self._relay_id = relay_id
        self._hurry = hurry
        self._clock = clock
        self._backoff = Backoff(config.backoff_time, config.max_backoff)
        self._now = app.now()
        self._jitter = 0.0  # drawn once per batch: equal failures then share a statement
        self._stalled: dict[tuple[str, str], float] = {}
        """Exchange and routing key of queues that did not answer, and until when they rest."""

    def run(self, batch: Batch) -> None:
        """Give outcomes to rows. Those without one were not sent, and are to be given back."""
        if self._hurry():
            return
        self._jitter, self._now = random.random(), self._app.now()  # noqa: S311
        suspects = [row for row in batch.rows if _has_history(row)]
        fresh = [row for row in batch.rows if not _has_history(row)]
        try:
            interruption = self._publish_together(batch, fresh, suspects)
            interrupted = [row for row in fresh if interruption and row.id in batch.unsent]
            self._publish_alone(batch, interrupted + suspects)
        except Outage as outage:
            self._defer(batch, list(batch.unsent.values()), outage)
        else:
            if interruption is not None:  # what there was no time to send alone
                left = [row for row in interrupted if row.id in batch.unsent]
                self._defer(batch, left, interruption)

    def _publish_together(
        self, batch: Batch, rows: list[ClaimedMessage], suspects: list[ClaimedMessage]
    ) -> Interrupted | None:
        """In one go. Rows for a queue that stalled before join the suspects instead."""
        opened: list[ClaimedMessage] = []
        messages = self._opened(batch, rows, opened, suspects)
        try:
            for position, error in self._publisher.publish(messages, self._config.send_timeout):
                batch.add(self._judge(opened[position], error))
                if self._publisher.lazy and self._hurry():
                    return None
        except Interrupted as exc:
            return exc
        except Outage:
            raise
        except Exception as exc:  # noqa: BLE001  a message that trips a publisher; alone it is found
            return _interrupted(exc)
        return None

    def _publish_alone(self, batch: Batch, rows: list[ClaimedMessage]) -> None:
        """One by one, each with a confirm of its own, as long as there is time."""
        patience = self._config.send_timeout / 2
        end = min(self._clock() + self._config.send_timeout, batch.send_before - patience)
        doubtful: list[tuple[ClaimedMessage, Interrupted]] = []
        for row in rows:
            if self._hurry() or self._clock() >= end or len(doubtful) == DOUBTS:
                break
            error = self._try_alone(batch, row, patience)
            if error is None:
                continue
            if batch.has_published or self._publisher.reachable(patience):
                self._try_again(batch, row, error, patience)
            else:
                doubtful.append((row, error))
        for row, error in doubtful:
            if not batch.has_published:
                raise error
            self._try_again(batch, row, error, patience)

    def _try_again(
        self, batch: Batch, row: ClaimedMessage, error: Interrupted, patience: float
    ) -> None:
        """Blame a row that is interrupted twice while the broker lives. Once may be bad luck: the
        connection may have been doomed by the message before.
        """
        if not isinstance(error.__cause__, TimeoutError):
            again = self._try_alone(batch, row, patience)
            if again is None:
                return
            error = again
        batch.add(self._judge(row, error.__cause__ or error))

    def _try_alone(self, batch: Batch, row: ClaimedMessage, patience: float) -> Interrupted | None:
        """Publish one row. Returns the interruption that it met, or perhaps caused."""
        whole = self._begin(batch, row)
        message = self._open(batch, whole) if whole is not None else None
        if message is None:
            return None
        route = message.exchange, message.routing_key
        try:
            for _, error in self._publisher.publish([message], patience):
                batch.add(self._judge(row, error))
            self._stalled.pop(route, None)
        except Interrupted as exc:
            if isinstance(exc.__cause__, TimeoutError):  # a declaration or a confirm
                self._let_rest(route)
            return exc
        except Outage:
            raise
        except Exception as exc:  # noqa: BLE001  whatever a message provokes is its own failure
            batch.add(self._judge(row, exc))
        return None

    def _let_rest(self, route: tuple[str, str]) -> None:
        now, rest = self._clock(), REST * self._config.send_timeout
        # A queue that was never used again must not be remembered for ever.
        self._stalled = {each: end for each, end in self._stalled.items() if end > now - 10 * rest}
        self._stalled[route] = now + rest

    def _begin(self, batch: Batch, row: ClaimedMessage) -> ClaimedMessage | None:
        """Where an attempt may kill the relay, settle what is decided and count the attempt first.

        Then only this row remembers it. None if there is nothing to send.
        """
        if not row.orphaned and not row.oversized:
            return row
        if row.orphaned and row.retries >= max(1, self._config.max_retries):
            reason = f"its relay ended without a result, {row.retries} times"
            batch.add(Dead(row, reason, row.retries))
            return None
        batch.settle(self._store, self._relay_id)
        return self._store.begin(row, self._relay_id)

    def _opened(
        self,
        batch: Batch,
        rows: Iterable[ClaimedMessage],
        opened: list[ClaimedMessage],
        suspects: list[ClaimedMessage],
    ) -> Iterator[Message]:
        """The messages, each made when the publisher takes it: all of them at once are large."""
        for row in rows:
            message = self._open(batch, row)
            if message is None:
                continue
            if (message.exchange, message.routing_key) in self._stalled:
                suspects.append(row)
                continue
            opened.append(row)
            yield message

    def _open(self, batch: Batch, row: ClaimedMessage) -> Message | None:
        """The message of a row. None if the row got an outcome instead: it holds no message, or
        its queue stalled a moment ago.
        """
        try:
            message = open_envelope(row, self._now, self._clock() - batch.claimed_at)
            tracing.restore(row, message)
            rest = self._stalled.get((message.exchange, message.routing_key), 0.0) - self._clock()
        except Exception as exc:  # noqa: BLE001  a hostile row stops no other
            batch.add(self._judge(row, exc))
            return None
        if rest > 0:
            batch.add(Deferred(row, "its queue did not answer for another message", rest))
            return None
        return message

    def _defer(self, batch: Batch, rows: Iterable[ClaimedMessage], outage: Outage) -> None:
        for row in rows:
            batch.outage = str(outage)
            batch.add(Deferred(row, batch.outage, OUTAGE_DELAY))

    def _judge(self, row: ClaimedMessage, error: BaseException | None) -> Outcome:
        """What becomes of a row that the broker took (no error) or that failed by itself."""
        if error is None:
            return Published(row)
        attempts, reason = row.retries + 1, describe(error)
        if is_permanent(error) or attempts >= self._config.max_retries:
            return Dead(row, reason, attempts)
        return Retry(row, reason, self._backoff.delay(row.retries, self._jitter))


def _has_history(row: ClaimedMessage) -> bool:
    return row.attempted or row.orphaned or row.oversized


def _interrupted(error: Exception) -> Interrupted:
    interruption = Interrupted(describe(error))
    interruption.__cause__ = error
    return interruption
