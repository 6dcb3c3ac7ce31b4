"""What the relay asks of a publisher: an answer for every message, or the news of an outage.

A publisher reports each message's own error and raises `Outage` for everything that is not one
message's. It never retries and never decides what an error means for a row: the relay does both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_outbox_steps.messages import Message, Receipt


class Publisher(Protocol):
    """Publishes batches through the app's producer pool. Used by one thread."""

    lazy: bool
    """Whether a message is sent only when its receipt is asked for, so that a caller that stops
    iterating leaves the rest unsent. A pipeline sends everything before the first receipt."""

    def publish(self, messages: Iterable[Message], timeout: float) -> Iterator[Receipt]:
        """Yield a receipt for each message that the broker took or refused, in any order.

        `messages` is lazy and can be iterated once; do not hold on to them. Raises `Outage` if the
        broker can't be reached or takes nothing now, and `Interrupted` if the connection broke or
        the broker fell silent while messages were on their way: those without a receipt may or may
        not have arrived, and one of them may be the cause. Takes about `timeout` seconds at most; a
        lazy publisher then stops, and a message without a receipt was not sent.
        """

    def reachable(self, timeout: float) -> bool:
        """Whether the broker accepts a connection and answers on it. False if that is unknown.

        The relay asks after a message that was on its way alone was interrupted: with the broker
        alive, that message is the cause.
        """

    def close(self) -> None:
        """Forget channels. Connections go back to the pool."""
