"""The publish step of a tick: every row of a batch gets an outcome that depends on it alone.

Rows without a history are published together. Rows that an interruption left without an answer, and
rows that failed before, are published alone: one that breaks the connection while the broker is
alive is then known to be the cause. It spends retries and ends as a dead letter; the others are
sent again at most once. An outage spends no retry. The next step of the path is `Store.settle`.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.classify import is_permanent
from celery_outbox_steps.errors import Interrupted, Outage, StoreError, describe
from celery_outbox_steps.messages import (
    Dead,
    Deferred,
    Expired,
    Message,
    Outcome,
    Published,
    Retry,
)
from celery_outbox_steps.relay.policy import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from celery_outbox_steps.messages import ClaimedMessage
    from celery_outbox_steps.publishers.base import Publisher
    from celery_outbox_steps.relay.batch import Batch
    from celery_outbox_steps.relay.prefetch import Claims

    OpenRow = Callable[[ClaimedMessage, datetime, float], Message]

OUTAGE_DELAY = 1.0
"""Seconds until a row is due again after an outage. The breaker is what slows the relay down."""
STALL_TIMEOUTS = 3
"""A queue that did not answer gets no message for this many send timeouts; then one is tried."""
MAX_UNEXPLAINED = 3
"""Interrupted messages in a row that count as an outage if nothing shows the broker to be alive."""


class PublishStep:
    """Turns the rows of a batch into outcomes, through one publisher. Used by one thread."""

    def __init__(
        self,
        app: Any,
        publisher: Publisher,
        claims: Claims,
        should_stop_sending: Callable[[], bool],
        open_row: OpenRow,
    ) -> None:
        self._open_row = open_row
        self._app = app
        self._publisher = publisher
        self._claims = claims
        self._should_stop_sending = should_stop_sending
        self._clock = claims.clock
        self._recorders = claims.recorders
        self._max_retries = claims.config.max_retries
        self._timeout = claims.config.send_timeout
        self._backoff = Backoff(claims.config.backoff_time, claims.config.max_backoff)
        self._now = app.now()
        self._jitter = 0.0  # drawn once per batch: equal failures then share a statement
        self._stalled: dict[tuple[str, str], float] = {}
        """Exchange and routing key of queues that did not answer, and the end of their pause."""

    def publish_batch(self, batch: Batch) -> None:
        """Give outcomes to rows. Those without one were not sent, and have to be released."""
        self._jitter, self._now = random.random(), self._app.now()  # noqa: S311
        try:
            alone = self._publish_together(batch)
            if alone:
                self._publish_alone(batch, alone)
        except Outage as outage:
            batch.outage = str(outage)
            batch.defer(list(batch.unsent.values()), batch.outage, OUTAGE_DELAY)
            return
        if alone and not self._should_stop_sending():
            unsent = [row for row in alone if batch.may_send(row)]
            batch.defer(unsent, "no time was left to send this message alone", OUTAGE_DELAY)

    def _publish_together(self, batch: Batch) -> list[ClaimedMessage]:
        """Publish the rows without a history together. Returns those that must be sent alone.

        Rows with keys take as many rounds as one of the keys has rows: see `Batch.rounds`. What was
        published is settled after `send_timeout` at the latest, and the rest is claimed again.
        """
        end = self._clock() + self._timeout
        rows = list(batch.unsent.values())
        with_history = [row for row in rows if row.has_history]
        fresh = [row for row in rows if not row.has_history] if with_history else rows
        held_back: list[ClaimedMessage] = []
        for number, ready in enumerate(batch.rounds(fresh)):
            if number:
                self._claims.keep_lease(batch)
            batch.begin_round()
            held_back += self._publish_round(batch, ready)
            if batch.suspects or self._should_stop_sending() or self._clock() >= end:
                break
        return held_back + with_history

    def _publish_round(self, batch: Batch, rows: Sequence[ClaimedMessage]) -> list[ClaimedMessage]:
        """Publish rows together. Returns those that must be sent alone."""
        opened: list[ClaimedMessage] = []
        held_back: list[ClaimedMessage] = []
        messages = self._open_all(batch, rows, opened, held_back)
        try:
            for position, error in self._publisher.publish(messages, self._timeout):
                batch.add(self._outcome_of(opened[position], error))
                if self._publisher.lazy and self._should_stop_sending():
                    return []
        except Exception as exc:
            if isinstance(exc, Outage) and not isinstance(exc, Interrupted):
                raise
            # Interrupted, or a message caused an error in the publisher: sending alone finds it.
            held_back = [row for row in rows if row.id in batch.unsent]
            batch.suspects.update(row.id for row in held_back)
        return held_back

    def _publish_alone(self, batch: Batch, rows: list[ClaimedMessage]) -> None:
        """Publish rows one by one, each with its own confirm, as long as there is time.

        A row that is interrupted while the broker is reachable is the cause. If the transport does
        not know that, a row is the cause if a later one is published; if no later one is, only the
        first of the interrupted rows can be the cause, and the rest is an outage. A row that was
        not answered in time is sent once more, if the broker may have come back only after that.
        """
        end = self._clock() + self._timeout
        unexplained: list[tuple[ClaimedMessage, Interrupted]] = []
        unanswered: list[tuple[ClaimedMessage, Interrupted]] = []
        for row in rows:
            out_of_time = self._should_stop_sending() or self._clock() >= end
            if out_of_time or len(unexplained) == MAX_UNEXPLAINED:
                break
            if not batch.may_send(row):
                continue
            published = batch.counts[Published]
            interruption = self._publish_one(batch, row)
            if interruption is None:
                if batch.counts[Published] > published:
                    self._send_again(batch, [*unexplained, *unanswered])
                    unexplained, unanswered = [], []
            elif not self._is_reachable(batch):
                unexplained.append((row, interruption))
            elif _timed_out(interruption) and not batch.broker_is_alive:
                unanswered.append((row, interruption))
            else:
                self._send_again(batch, [(row, interruption)])
        self._send_again(batch, unanswered)
        if unexplained:
            self._send_again(batch, unexplained[:1] if batch.broker_is_alive else [])
            raise unexplained[0][1]

    def _send_again(
        self, batch: Batch, interrupted: list[tuple[ClaimedMessage, Interrupted]]
    ) -> None:
        """A row that is interrupted twice while the broker is alive has failed. Once may be chance:
        the message before it may have broken the connection, or the broker came back only then.
        """
        for row, first in interrupted:
            if _timed_out(first) and batch.broker_is_alive:
                error: Interrupted | None = first  # a second wait would not help
            else:
                self._stalled.clear()  # whether it was the queue or the broker is not known
                error = self._publish_one(batch, row)
            if error is not None and row.id in batch.unsent:
                batch.add(self._outcome_of(row, error.__cause__ or error))

    def _publish_one(self, batch: Batch, row: ClaimedMessage) -> Interrupted | None:
        """Publish one row. Returns the interruption, if any; the row may be its cause."""
        self._claims.keep_lease(batch)
        message = self._open_alone(batch, row) if row.id in batch.unsent else None
        if message is None:
            return None
        route = message.exchange, message.routing_key
        try:
            for _, error in self._publisher.publish([message], self._timeout):
                batch.add(self._outcome_of(row, error))
            self._stalled.pop(route, None)
        except Outage as exc:
            if row.id not in batch.unsent:
                return None  # it was answered; something after it was interrupted
            if not isinstance(exc, Interrupted):
                raise
            if _timed_out(exc):  # a declaration or a confirm
                self._mark_stalled(route)
            return exc
        except Exception as exc:  # noqa: BLE001  an error that a message causes is its own failure
            if row.id in batch.unsent:
                batch.add(self._outcome_of(row, exc))
        return None

    def _is_reachable(self, batch: Batch) -> bool:
        self._claims.keep_lease(batch)
        return self._publisher.reachable(self._timeout / 2)

    def _mark_stalled(self, route: tuple[str, str]) -> None:
        now, pause = self._clock(), STALL_TIMEOUTS * self._timeout
        # Forget queues that were not used again, so that this dictionary can't grow forever.
        self._stalled = {each: end for each, end in self._stalled.items() if end > now - 10 * pause}
        self._stalled[route] = now + pause

    def _open_alone(self, batch: Batch, row: ClaimedMessage) -> Message | None:
        """The message of a row that is sent alone. None if the row is not to be sent now.

        If the attempt may kill the relay, the outcomes so far are written and the attempt is
        counted first: a crash then counts against this row only.
        """
        if not row.may_kill:
            return self._open(batch, row)
        if row.retries >= max(1, self._max_retries):
            reason = f"its relay ended without a result; {row.retries} attempts in all"
            batch.add(Dead(row, reason, row.retries))
            return None
        try:
            whole = self._claims.begin_attempt(batch, row)
        except StoreError:
            raise
        except Exception as exc:  # noqa: BLE001  such as a MemoryError: the row is too large
            batch.add(self._outcome_of(row, exc))
            return None
        self._claims.keep_lease(batch)  # the statements may have waited for locks
        return self._open(batch, whole) if whole is not None and row.id in batch.unsent else None

    def _open_all(
        self,
        batch: Batch,
        rows: Iterable[ClaimedMessage],
        opened: list[ClaimedMessage],
        held_back: list[ClaimedMessage],
    ) -> Iterator[Message]:
        """The messages, each built when the publisher asks for it: all at once would take too much
        memory. Rows for a queue that stalled before are held back. If the process was frozen until
        the lease ended, other relays may have the rest: it is not sent.
        """
        for row in rows:
            if self._clock() >= batch.lease_ends:
                return
            message = self._open(batch, row)
            if message is None:
                continue
            if (message.exchange, message.routing_key) in self._stalled:
                held_back.append(row)
                continue
            opened.append(row)
            yield message

    def _open(self, batch: Batch, row: ClaimedMessage) -> Message | None:
        """The message of a row. None if the row got an outcome instead: it holds no message, it
        expired while it was held, or its queue stalled a moment ago.
        """
        now = self._clock()
        try:
            message = self._open_row(row, self._now, now - batch.claimed_at)
            self._recorders.restore(row, message)
            pause = self._stalled.get((message.exchange, message.routing_key), 0.0) - now
        except Exception as exc:  # noqa: BLE001  a malformed row must not stop the others
            batch.add(self._outcome_of(row, exc))
            return None
        if message.expired and row.eta is not None:
            batch.add(Expired(row))
            return None
        if pause > 0:
            batch.add(Deferred(row, "the queue did not answer for another message", pause))
            return None
        for watch in batch.watchers:
            with suppress(Exception):
                watch(message)
        return message

    def _outcome_of(self, row: ClaimedMessage, error: BaseException | None) -> Outcome:
        """The outcome of a row that the broker accepted (no error) or whose message failed."""
        if error is None:
            return Published(row)
        attempts, reason = row.retries + 1, describe(error)
        if is_permanent(error) or attempts >= self._max_retries:
            return Dead(row, reason, attempts)
        return Retry(row, reason, self._backoff.delay(row.retries, self._jitter))


def _timed_out(interruption: Interrupted) -> bool:
    return isinstance(interruption.__cause__, TimeoutError)
