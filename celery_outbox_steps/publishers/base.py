"""The contract of a publisher: an answer for every message, or an `Outage`.

A publisher reports each message's own error and raises `Outage` for every other error. It never
retries and never decides what an error means for a row: `celery_outbox_steps.relay.publish` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_outbox_steps.messages import Message, Receipt


class Publisher(Protocol):
    """Publishes batches through the app's producer pool. Used by one thread."""

    lazy: bool
    """Whether a message is sent only when its receipt is requested, so that a caller that stops
    iterating leaves the rest unsent. A pipeline sends everything before the first receipt."""

    def publish(self, messages: Iterable[Message], timeout: float) -> Iterator[Receipt]:
        """Yield a receipt for each message that the broker accepted or refused, in any order.

        `messages` is lazy and can be iterated once; do not keep the messages. Raises `Outage` if
        the broker can't be reached or accepts nothing, and `Interrupted` if the connection broke or
        the broker stopped answering while messages were being sent: those without a receipt may or
        may not have arrived, and one of them may be the cause. Takes about `timeout` seconds at
        most; a lazy publisher then stops, and messages without a receipt were not sent.
        """

    def reachable(self, timeout: float) -> bool:
        """Whether the broker accepts a connection and answers on it. False if that is unknown.

        The relay calls this after a message that was sent alone was interrupted: if the broker is
        alive, that message is the cause.
        """

    def close(self) -> None:
        """Drop the channels. Connections belong to the pool."""
