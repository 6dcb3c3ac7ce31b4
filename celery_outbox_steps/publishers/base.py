"""What the relay asks of a publisher: an answer for every message, and no surprises.

A publisher never decides what a failure means for a row (see `celery_outbox_steps.classify`) and
never retries by itself, with one exception that the AMQP publisher documents: neighbours of a
poison message are sent again where the broker forgot them together with the channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_outbox_steps.messages import Message, Receipt


class Publisher(Protocol):
    """Publishes batches through the app's producer pool. Used by one thread."""

    lazy: bool
    """Whether a caller that stops iterating leaves the rest unsent. A pipeline can't promise that:
    all of it is sent before the first receipt."""

    def publish(self, messages: Iterable[Message], timeout: float) -> Iterator[Receipt]:
        """Yield one receipt per message, in any order, within about `timeout` seconds.

        The messages are made as they are taken, each of them once: who does not keep them saves
        memory. Never raises, and does nothing before the first `next()`. A lost connection is the
        error of every message that the broker did not confirm. A lazy publisher stops when time is
        up: to whoever takes all receipts, a message without one was not handed to the broker.
        """

    def close(self) -> None:
        """Forget channels. Connections go back to the pool."""
