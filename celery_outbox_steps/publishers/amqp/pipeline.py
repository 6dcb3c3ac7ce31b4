"""One batch on one connection: everything is written at once, and a poison message fails alone.

RabbitMQ refuses a message by closing the channel, and then does not confirm what it has routed
before: sent again, those messages would arrive twice. So a message that may close a channel is kept
apart. Every exchange has its own channel, a message with a body larger than any accepted so far is
sent first and alone, and messages with properties that RabbitMQ checks are sent last and alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from amqp.exceptions import Blocked, ChannelError, NotFound

from celery_outbox_steps.errors import ConfirmTimeout
from celery_outbox_steps.observe.log import log
from celery_outbox_steps.publishers.amqp.channel import ConfirmChannel, Delivery
from celery_outbox_steps.publishers.amqp.frames import publish_frames
from celery_outbox_steps.upstream.amqp import can_write_frames, write_frames

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_outbox_steps.messages import Message
    from celery_outbox_steps.publishers.pool import Deadline
    from celery_outbox_steps.upstream.amqp import Wire


CHUNK = 64 * 1024
"""Bytes per socket write: small enough that confirms are read before a socket buffer is full."""
MAX_CHANNELS = 64
"""The number of exchanges that keep a channel open on one connection."""
LONGEST_EXPIRATION = 2**32 - 1
"""Milliseconds, almost 50 days: RabbitMQ's limit depends on its version, but is never lower."""


class ConnectionState:
    """What the publisher remembers about one connection, without keeping the connection alive."""

    def __init__(self, wire: Wire) -> None:
        self.channels: WeakValueDictionary[str, ConfirmChannel] = WeakValueDictionary()
        self.accepted = -1
        """The largest body that the broker has accepted: its max_message_size can't be lower."""
        self.blocked = False
        """Whether the broker blocks publishers (a memory or disk alarm)."""
        self.can_write_frames = can_write_frames(wire)
        wire.on_blocked = self._note_blocked(wire.on_blocked, blocked=True)
        wire.on_unblocked = self._note_blocked(wire.on_unblocked, blocked=False)

    def _note_blocked(self, callback: Any, *, blocked: bool) -> Any:
        def note(*reason: str) -> None:
            self.blocked = blocked
            if callback:
                callback(*reason)

        return note


class Pipeline:
    """Sends one batch on one connection, in an order that keeps refusals apart."""

    def __init__(self, wire: Wire, state: ConnectionState, deadline: Deadline) -> None:
        self.wire = wire
        self.state = state
        self.deadline = deadline
        self.lost: dict[str, Exception] = {}
        """Exchanges whose channel the broker closed during this batch, and why."""
        self._chunk: list[bytes] = []
        self._size = 0

    def send_all(self, deliveries: list[Delivery]) -> None:
        """Get an answer for every delivery, or raise the error that stopped the whole connection.

        If a channel was closed, its unanswered messages are sent again one by one. Some of them may
        have been routed already and then arrive twice. This happens only if an exchange is deleted
        or a permission is lost while the batch is being sent, or if a topic permission forbids one
        routing key of an exchange and not another.
        """
        together: list[Delivery] = []
        alone: list[Delivery] = []
        larger: list[Delivery] = []
        for each in deliveries:
            if each.answered:
                continue
            if _is_checked_by_broker(each.message):
                alone.append(each)
                continue
            together.append(each)
            if len(each.message.body) > self.state.accepted:
                larger.append(each)
        self._try_largest(larger)
        self._write(together)
        self._await_confirms()
        for each in together + alone:
            if not each.answered:
                self._send_alone(each)

    def await_unblocked(self) -> None:
        """Wait while the broker blocks publishers. Raises `Blocked` if that lasts too long."""
        while self.state.blocked:
            if self.deadline.passed() or not self._drain(self.deadline.remaining()):
                self._refuse_if_blocked()

    def abandon(self) -> None:
        """Forget the unconfirmed messages: late confirms must not count for other messages."""
        for channel in self.state.channels.values():
            channel.pending.clear()
        self.state.channels = WeakValueDictionary()

    def _try_largest(self, larger: list[Delivery]) -> None:
        """Send the largest first: if the broker accepts it, the others are not too large either."""
        for each in sorted(larger, key=lambda each: len(each.message.body), reverse=True):
            if self._send_alone(each):
                self.state.accepted = len(each.message.body)
                return

    def _send_alone(self, delivery: Delivery) -> bool:
        """Send one message and wait for its confirm. True if the broker accepted its size."""
        exchange = delivery.message.exchange
        error = self.lost.pop(exchange, None)
        if isinstance(error, NotFound):
            # The same for every message to that exchange: don't have a channel closed for each.
            self.lost[exchange] = error
            delivery.fail(error)
            return False
        if not self._write([delivery]):
            return False
        self._await_confirms()
        if not delivery.answered:
            delivery.fail(self.lost[exchange])
            return False
        return True

    def _write(self, deliveries: Iterable[Delivery]) -> int:
        """Write what can be written, reading confirms in between. Returns how many were written."""
        count = 0
        for delivery in deliveries:
            frames = None if delivery.answered else self._frames(delivery)
            if frames is not None:
                count += 1
                self._chunk.append(frames)
                self._size += len(frames)
                if self._size >= CHUNK:
                    self._flush()
        self._flush()
        return count

    def _frames(self, delivery: Delivery) -> bytes | None:
        """The bytes to write. None if it can't be encoded, or its exchange's channel is lost."""
        message, mandatory = delivery.message, delivery.mandatory
        if message.exchange in self.lost:
            return None
        channel, frames = self._channel(message.exchange), b""
        try:
            if self.state.can_write_frames:
                frame_max = self.wire.frame_max
                frames = publish_frames(message, channel.channel_id, frame_max, mandatory=mandatory)
            else:
                self.deadline.refuse_if_passed()
                channel.write(message, mandatory=mandatory)
        except Exception as exc:
            if not self.wire.connected:
                raise
            delivery.fail(exc)
            return None
        channel.expect(delivery)
        return frames

    def _channel(self, exchange: str) -> ConfirmChannel:
        channel = self.state.channels.get(exchange)
        if channel is None or not channel.is_open:
            if len(self.state.channels) >= MAX_CHANNELS:
                self._close_a_channel()
            channel = self.state.channels[exchange] = ConfirmChannel(self.wire)
        return channel

    def _close_a_channel(self) -> None:
        self._flush()
        self._await_confirms()
        _, channel = self.state.channels.popitem()
        channel.close()

    def _flush(self) -> None:
        data = b"".join(self._chunk)
        self._chunk, self._size = [], 0
        if data:
            self.await_unblocked()
            self.deadline.refuse_if_passed()
            write_frames(self.wire, data, self.deadline.remaining())
        while self._drain(timeout=0):
            pass

    def _await_confirms(self) -> None:
        for channel in list(self.state.channels.values()):
            while channel.pending:
                if self.deadline.passed() or not self._drain(self.deadline.remaining()):
                    self._refuse_if_blocked()
                    raise ConfirmTimeout("the broker did not confirm in time (send_timeout)")

    def _refuse_if_blocked(self) -> None:
        if self.state.blocked:
            raise Blocked("the broker blocks publishers: a memory or disk alarm")

    def _drain(self, timeout: float) -> bool:
        """Handle one event of the connection. False if there was none within `timeout`."""
        try:
            self.wire.drain_events(timeout=timeout)
        except TimeoutError:
            return False
        except ChannelError:
            if not self.wire.connected:
                raise
            log("celery_outbox_other_channel_closed", exc_info=True)
        for exchange, channel in list(self.state.channels.items()):
            if channel.closed_by is not None:
                self.lost[exchange] = channel.closed_by
                del self.state.channels[exchange]
        return True


def _is_checked_by_broker(message: Message) -> bool:
    """Whether it has a property that RabbitMQ checks: it closes the channel if that is wrong."""
    properties, headers = message.properties, message.headers
    return (
        "user_id" in properties
        or properties.get("delivery_mode", 2) not in (1, 2)
        or ("expiration" in properties and not _is_valid_expiration(properties["expiration"]))
        or "CC" in headers
        or "BCC" in headers
    )


def _is_valid_expiration(value: Any) -> bool:
    text = str(value)
    return text.isascii() and text.isdecimal() and int(text) <= LONGEST_EXPIRATION
