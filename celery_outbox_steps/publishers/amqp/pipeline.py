"""One batch on one connection: everything is written at once, and a poison message fails alone.

RabbitMQ answers a message that it refuses by closing the channel, and forgets to confirm what it
has routed before: sent again, those would arrive twice. So what it closes a channel for is kept
away from the rest. Every exchange has a channel of its own, a size that the broker has never
accepted goes first and alone, and properties that the broker inspects go last and alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from amqp.exceptions import Blocked, ChannelError, NotFound

from celery_outbox_steps.errors import ConfirmTimeout
from celery_outbox_steps.observe.log import log
from celery_outbox_steps.publishers.amqp.channel import ConfirmChannel, Delivery
from celery_outbox_steps.publishers.amqp.frames import publish_frames, supports_fast_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_outbox_steps.messages import Message
    from celery_outbox_steps.publishers.pool import Deadline


CHUNK = 64 * 1024
"""Bytes per socket write. Small enough that confirms are read before anybody's buffer is full."""
MAX_CHANNELS = 64
"""Exchanges that keep a channel open on one connection."""
LONGEST_EXPIRATION = 2**32 - 1
"""Milliseconds, almost 50 days: RabbitMQ's limit depends on its version and is not below this."""


class ConnectionState:
    """What is known of one connection, without keeping it alive."""

    def __init__(self, wire: Any) -> None:
        self.channels: WeakValueDictionary[str, ConfirmChannel] = WeakValueDictionary()
        self.accepted = -1
        """The largest body that the broker has taken: max_message_size can't be below it."""
        self.blocked = False
        """Whether the broker has told us to stop (memory or disk alarm)."""
        self.supports_fast_path = supports_fast_path(wire)
        wire.on_blocked = self._note_blocked(wire.on_blocked, blocked=True)
        wire.on_unblocked = self._note_blocked(wire.on_unblocked, blocked=False)

    def _note_blocked(self, others: Any, *, blocked: bool) -> Any:
        def note(*reason: str) -> None:
            self.blocked = blocked
            if others:
                others(*reason)

        return note


class Pipeline:
    """The choreography of one batch on one connection."""

    def __init__(self, wire: Any, known: ConnectionState, deadline: Deadline) -> None:
        self.wire = wire
        self.known = known
        self.deadline = deadline
        self.lost: dict[str, Exception] = {}
        """Exchanges whose channel the broker closed during this batch, and why."""
        self._chunk: list[bytes] = []
        self._size = 0

    def publish(self, deliveries: list[Delivery]) -> None:
        """Settle every delivery, or raise what stopped the connection as a whole."""
        plain: list[Delivery] = []
        risky: list[Delivery] = []
        for each in deliveries:
            (risky if _is_inspected(each.message) else plain).append(each)
        self._prove_size(plain)
        self._run([each for each in plain if not each.settled])
        for each in risky:
            self._alone(each)

    def await_unblocked(self) -> None:
        """Raise `Blocked` if the broker does not take messages again in time."""
        while self.known.blocked:
            if self.deadline.passed() or not self._drain(self.deadline.left()):
                self._refuse_if_blocked()

    def abandon(self) -> None:
        """Forget what is on its way: its late confirms must not be taken for others'."""
        for channel in self.known.channels.values():
            channel.pending.clear()
        self.known.channels = WeakValueDictionary()

    def _prove_size(self, deliveries: list[Delivery]) -> None:
        """Let the largest go first if it is larger than anything that the broker ever took."""
        largest_first = sorted(
            (each for each in deliveries if len(each.message.body) > self.known.accepted),
            key=lambda each: len(each.message.body),
            reverse=True,
        )
        for each in largest_first:
            if self._alone(each):
                self.known.accepted = len(each.message.body)
                return

    def _run(self, deliveries: list[Delivery]) -> None:
        """All at once; one by one those that a closed channel left undecided.

        Of those some may have been routed already, so they may arrive twice. By construction that
        takes an exchange that is deleted, or a permission that is lost, while the batch is on its
        way, or a topic permission that forbids one routing key of an exchange and not another.
        """
        self._write(deliveries)
        self._await_confirms()
        for each in deliveries:
            if not each.settled:
                self._alone(each)

    def _alone(self, delivery: Delivery) -> bool:
        """Publish one message with its own confirm. True if the broker looked at it and took it."""
        exchange = delivery.message.exchange
        error = self.lost.pop(exchange, None)
        if isinstance(error, NotFound):
            # Nobody can publish there: no need to have the channel closed for each of them.
            self.lost[exchange] = error
            delivery.settle(error)
            return False
        if not self._write([delivery]):
            return False
        self._await_confirms()
        if not delivery.settled:
            delivery.settle(self.lost[exchange])
            return False
        return True

    def _write(self, deliveries: Iterable[Delivery]) -> int:
        """Write what can be written and count it; confirms that arrive are taken in between."""
        count = 0
        for delivery in deliveries:
            frames = self._frames(delivery)
            if frames is not None:
                count += 1
                self._chunk.append(frames)
                self._size += len(frames)
                if self._size >= CHUNK:
                    self._flush()
        self._flush()
        return count

    def _frames(self, delivery: Delivery) -> bytes | None:
        """What to write for it. None if it can't be sent: encoded, or on a channel that is lost."""
        exchange = delivery.message.exchange
        if exchange in self.lost:
            return None
        channel = self._channel(exchange)
        try:
            frames = self._encode(delivery, channel)
        except Exception as exc:
            if not self.wire.connected:
                raise
            delivery.settle(exc)
            return None
        channel.expect(delivery)
        return frames

    def _encode(self, delivery: Delivery, channel: ConfirmChannel) -> bytes:
        message, mandatory = delivery.message, delivery.mandatory
        if self.known.supports_fast_path:
            frame_max = self.wire.frame_max
            return publish_frames(message, channel.channel_id, frame_max, mandatory=mandatory)
        channel.write(message, mandatory=mandatory)
        return b""

    def _channel(self, exchange: str) -> ConfirmChannel:
        channel = self.known.channels.get(exchange)
        if channel is None or not channel.is_open:
            if len(self.known.channels) >= MAX_CHANNELS:
                self._close_a_channel()
            channel = self.known.channels[exchange] = ConfirmChannel(self.wire)
        return channel

    def _close_a_channel(self) -> None:
        self._flush()
        self._await_confirms()
        _, channel = self.known.channels.popitem()
        channel.close()

    def _flush(self) -> None:
        data = b"".join(self._chunk)
        self._chunk, self._size = [], 0
        if data:
            self.await_unblocked()
            self.wire.transport.write(data)
            self.wire.bytes_sent += 1
        while self._drain(timeout=0):
            pass

    def _await_confirms(self) -> None:
        while any(channel.pending for channel in self.known.channels.values()):
            if self.deadline.passed() or not self._drain(self.deadline.left()):
                self._refuse_if_blocked()
                raise ConfirmTimeout("the broker did not confirm in time (send_timeout)")

    def _refuse_if_blocked(self) -> None:
        if self.known.blocked:
            raise Blocked("the broker blocks publishers: a memory or disk alarm")

    def _drain(self, timeout: float) -> bool:
        """Take one event from the connection. False if there was none within `timeout`."""
        try:
            self.wire.drain_events(timeout=timeout)
        except TimeoutError:
            return False
        except ChannelError:
            if not self.wire.connected:
                raise
            log("celery_outbox_other_channel_closed", exc_info=True)
        self._notice_closed_channels()
        return True

    def _notice_closed_channels(self) -> None:
        for exchange, channel in list(self.known.channels.items()):
            if channel.closed_by is not None:
                self.lost[exchange] = channel.closed_by
                del self.known.channels[exchange]


def _is_inspected(message: Message) -> bool:
    """Whether RabbitMQ checks something in it that it closes the channel for."""
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
