"""Redis: one pipeline per batch, through kombu's `Producer.batch()` (kombu 5.7).

A pipeline has no answer per message. If it fails, some of its messages may have arrived and nobody
can say which: all of them get that error, are tried again, and may then arrive twice. Below kombu
5.7, and where redis-py is told to retry by itself, messages are sent one by one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.classify import BATCH_ERRORS
from celery_outbox_steps.messages import Receipt
from celery_outbox_steps.publishers.borrow import Deadline, borrowed_producer
from celery_outbox_steps.publishers.generic import GenericPublisher, hand_over, send_event

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_outbox_steps.messages import Message

NO_LIMIT = 1_000_000
"""Commands per pipeline: the batch decides when to flush, not kombu."""


class RedisPublisher(GenericPublisher):
    """Pipelined where kombu can, one by one where it can't."""

    lazy = False

    def publish(self, messages: Sequence[Message], timeout: float) -> Iterator[Receipt]:
        """See `Publisher.publish`."""
        deadline = Deadline(timeout)
        receipts: list[Receipt] = []
        answered = 0
        try:
            with borrowed_producer(self.app, deadline) as producer:
                if getattr(producer, "supports_batch_publish", False):
                    self._pipeline(producer, messages, receipts)
                    receipts.reverse()
                else:
                    for receipt in self._one_by_one(producer, messages, deadline):
                        answered += 1
                        yield receipt
        except Exception as exc:  # noqa: BLE001  a publisher answers for every message, it never raises
            receipts = [Receipt(index, exc) for index in range(answered, len(messages))]
        yield from receipts

    def _pipeline(
        self, producer: Any, messages: Sequence[Message], receipts: list[Receipt]
    ) -> None:
        with producer.batch(max_size=NO_LIMIT):
            for index, message in enumerate(messages):
                receipts.append(Receipt(index, self._add(producer, message)))
        # The messages are delivered by now: events that are lost must not make them look failed.
        with suppress(Exception), producer.batch(max_size=NO_LIMIT):
            for index, error in receipts:
                if error is None:
                    send_event(producer, messages[index], declare=self.declare)

    def _add(self, producer: Any, message: Message) -> Exception | None:
        try:
            hand_over(producer, message, declare=self.declare)
        except Exception as exc:
            if isinstance(exc, BATCH_ERRORS):
                raise
            return exc
        return None
