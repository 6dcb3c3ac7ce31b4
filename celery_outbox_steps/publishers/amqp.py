"""RabbitMQ through py-amqp: the whole batch is written, then its confirms are awaited.

A message counts as published only after the broker's ack. One poison message fails alone and its
neighbours arrive once, because what makes RabbitMQ close a channel is kept away from them: every
exchange has a channel of its own, a size that the broker has never accepted goes first and alone,
and properties that the broker inspects go last and alone. What is left is told in `_run`.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from amqp.exceptions import AMQPError, Blocked, ChannelError, NotFound
from amqp.exceptions import ConnectionError as AmqpConnectionError
from amqp.spec import Basic
from kombu.common import maybe_declare

from celery_outbox_steps.errors import ConfirmTimeout
from celery_outbox_steps.messages import Receipt
from celery_outbox_steps.publishers.borrow import (
    Deadline,
    blame_nobody,
    borrowed_producer,
    connect,
    discard,
)
from celery_outbox_steps.publishers.confirms import ConfirmChannel, Delivery
from celery_outbox_steps.publishers.frames import publish_frames

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from celery_outbox_steps.messages import Message

logger = logging.getLogger(__name__)

CHUNK = 64 * 1024
"""Bytes per socket write. Small enough that confirms are read before anybody's buffer is full."""
MAX_CHANNELS = 64
"""Exchanges that keep a channel open on one connection."""


class AmqpPublisher:
    """Pipelined, confirmed publishing on channels of its own, on connections of the app's pool."""

    lazy = False

    def __init__(self, app: Any, declare: bool = True) -> None:  # noqa: FBT001  a setting
        self.app = app
        self.declare = declare
        self._known: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()

    def publish(self, messages: Sequence[Message], timeout: float) -> Iterator[Receipt]:
        """See `Publisher.publish`. Order within a batch is kept but for the exceptions above."""
        deliveries = [Delivery(index, message) for index, message in enumerate(messages)]
        deadline = Deadline(timeout)
        error = self._hand_over(deliveries, deadline) if deliveries else None
        if _blames_a_message(error):
            self._find_culprit(deliveries, deadline)
        for delivery in deliveries:
            yield Receipt(delivery.index, delivery.error if delivery.settled else error)

    def close(self) -> None:
        """Forget the channels; they end with their connections, which belong to the pool."""
        self._known.clear()

    def _hand_over(self, deliveries: list[Delivery], deadline: Deadline) -> Exception | None:
        """Settle what can be settled. Returns the error of all the rest."""
        try:
            with borrowed_producer(self.app, deadline) as producer:
                _make_sure_it_lives(producer.connection, deadline)
                with _socket_timeout(producer.connection.connection, deadline.left()):
                    return self._publish_on(producer, deliveries, deadline)
        except Exception as exc:  # noqa: BLE001  a publisher answers for every message, it never raises
            return exc if _blames_a_message(exc) else blame_nobody(exc)

    def _find_culprit(self, deliveries: list[Delivery], deadline: Deadline) -> None:
        """A message that makes the broker close the connection fails alone, like any other."""
        for delivery in deliveries:
            if not delivery.settled:
                error = self._hand_over([delivery], deadline)
                if error is not None:
                    delivery.settle(error)

    def _publish_on(
        self, producer: Any, deliveries: list[Delivery], deadline: Deadline
    ) -> Exception | None:
        wire = producer.connection.connection
        batch = _Batch(wire, self._known_of(wire), deadline)
        try:
            self._run(batch, producer, deliveries)
            self._run(batch, producer, _events_of(deliveries))
        except Blocked as blocked:
            # The connection is kept: the broker reads what lies in a blocked socket later on, also
            # if we close it, so that connecting anew would add one more copy every time.
            batch.abandon()
            error: Exception = blocked
            return error
        return None

    def _run(self, batch: _Batch, producer: Any, deliveries: list[Delivery]) -> None:
        if self.declare:
            _declare_all(producer, deliveries)
        batch.publish([each for each in deliveries if not each.settled])
        _forget_lost_queues(producer.connection, deliveries)

    def _known_of(self, wire: Any) -> _Known:
        if wire not in self._known:
            self._known[wire] = _Known(wire)
        return self._known[wire]


class _Known:
    """What is known of one connection, without keeping it alive."""

    def __init__(self, wire: Any) -> None:
        self.channels: WeakValueDictionary[str, ConfirmChannel] = WeakValueDictionary()
        self.accepted = -1
        """The largest body that the broker has taken: max_message_size can't be below it."""
        self.blocked = False
        """Whether the broker has told us to stop (memory or disk alarm)."""
        wire.on_blocked = self._note_blocked(wire.on_blocked, blocked=True)
        wire.on_unblocked = self._note_blocked(wire.on_unblocked, blocked=False)

    def _note_blocked(self, others: Any, *, blocked: bool) -> Any:
        def note(*reason: str) -> None:
            self.blocked = blocked
            if others:
                others(*reason)

        return note


class _Batch:
    """The choreography of one batch on one connection."""

    def __init__(self, wire: Any, known: _Known, deadline: Deadline) -> None:
        self.wire = wire
        self.known = known
        self.deadline = deadline
        self.lost: dict[str, Exception] = {}
        """Exchanges whose channel the broker closed during this batch, and why."""

    def publish(self, deliveries: list[Delivery]) -> None:
        plain: list[Delivery] = []
        risky: list[Delivery] = []
        for each in deliveries:
            (risky if _is_inspected(each.message) else plain).append(each)
        self._prove_size(plain)
        self._run([each for each in plain if not each.settled])
        for each in risky:
            self._alone(each)

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
        """Write what can be written; confirms that arrive meanwhile are taken in between."""
        chunk: list[bytes] = []
        size = count = 0
        for delivery in deliveries:
            frames = self._frames(delivery)
            if frames is None:
                continue
            chunk.append(frames)
            size += len(frames)
            count += 1
            if size >= CHUNK:
                self._flush(chunk)
                size = 0
        self._flush(chunk)
        return count

    def abandon(self) -> None:
        """Forget what is on its way: its late confirms must not be taken for others'."""
        for channel in self.known.channels.values():
            channel.pending.clear()
        self.known.channels = WeakValueDictionary()

    def _frames(self, delivery: Delivery) -> bytes | None:
        exchange = delivery.message.exchange
        if exchange in self.lost:
            return None
        channel = self._channel(exchange)
        try:
            frames = publish_frames(
                delivery.message,
                channel.channel_id,
                self.wire.frame_max,
                mandatory=delivery.mandatory,
            )
        except Exception as exc:  # noqa: BLE001  not encodable: this message's failure alone
            delivery.settle(exc)
            return None
        channel.expect(delivery)
        return frames

    def _channel(self, exchange: str) -> ConfirmChannel:
        channel = self.known.channels.get(exchange)
        if channel is None or not channel.is_open:
            self._make_room()
            channel = self.known.channels[exchange] = ConfirmChannel(self.wire)
        return channel

    def _make_room(self) -> None:
        idle = [each for each in self.known.channels.values() if not each.pending]
        if len(self.known.channels) >= MAX_CHANNELS and idle:
            idle[0].close()

    def _flush(self, chunk: list[bytes]) -> None:
        if not chunk:
            return
        self._await_unblocked()
        self.wire.transport.write(b"".join(chunk))
        self.wire.bytes_sent += len(chunk)
        chunk.clear()
        while self._drain(timeout=0):
            pass

    def _await_confirms(self) -> None:
        while any(channel.pending for channel in self.known.channels.values()):
            if self.deadline.passed() or not self._drain(self.deadline.left()):
                self._refuse_if_blocked()
                raise ConfirmTimeout("the broker did not confirm in time (send_timeout)")

    def _await_unblocked(self) -> None:
        while self.known.blocked:
            if self.deadline.passed() or not self._drain(self.deadline.left()):
                self._refuse_if_blocked()

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
            logger.debug("celery_outbox_other_channel_closed", exc_info=True)
        self._notice_closed_channels()
        return True

    def _notice_closed_channels(self) -> None:
        for exchange, channel in list(self.known.channels.items()):
            if channel.closed_by is not None:
                self.lost[exchange] = channel.closed_by
                del self.known.channels[exchange]


def _events_of(deliveries: list[Delivery]) -> list[Delivery]:
    """The `task-sent` events of what was published. Nobody asks what becomes of them."""
    return [
        Delivery(each.index, each.message.event)
        for each in deliveries
        if each.message.event is not None and each.settled and each.error is None
    ]


def _blames_a_message(error: Exception | None) -> bool:
    """Whether the broker closed the connection because of what was published."""
    return isinstance(error, AmqpConnectionError) and bool(error.method_sig == Basic.Publish)


def _make_sure_it_lives(connection: Any, deadline: Deadline) -> None:
    """A connection that died while it lay in the pool is replaced before anything is written."""
    try:
        while True:
            connection.connection.drain_events(timeout=0)
    except TimeoutError:
        return
    except (OSError, AMQPError):
        discard(connection)
        connect(connection, deadline)


def _is_inspected(message: Message) -> bool:
    """Whether RabbitMQ checks something in it that it closes the channel for."""
    properties, headers = message.properties, message.headers
    return (
        "user_id" in properties
        or not str(properties.get("expiration") or 0).isdecimal()
        or "CC" in headers
        or "BCC" in headers
    )


def _declare_all(producer: Any, deliveries: list[Delivery]) -> None:
    """Each entity once per connection; a refusal is the failure of those that need that entity."""
    declared = producer.connection.declared_entities
    tried: dict[int, Exception | None] = {}
    for delivery in deliveries:
        for entity in delivery.message.declare:
            key = hash(entity)
            if key not in tried:
                tried[key] = None if key in declared else _declare(entity, producer)
            if tried[key] is not None:
                delivery.settle(tried[key])
                break


def _declare(entity: Any, producer: Any) -> Exception | None:
    # On the producer's own channel: the broker closes it on a refusal, and py-amqp opens it again.
    try:
        maybe_declare(entity, producer.channel)
    except OSError:
        raise
    except Exception as exc:
        if not producer.connection.connected:
            raise
        return exc
    return None


def _forget_lost_queues(connection: Any, deliveries: list[Delivery]) -> None:
    """An unroutable message's queue is gone: let the next attempt declare it again."""
    for delivery in deliveries:
        if delivery.error is not None:
            for entity in delivery.message.declare:
                connection.declared_entities.discard(hash(entity))


@contextmanager
def _socket_timeout(wire: Any, seconds: float) -> Iterator[None]:
    """Bound every read and write of the batch, those inside py-amqp's own waits included."""
    sock = wire.transport.sock
    before = sock.gettimeout()
    sock.settimeout(seconds)
    try:
        yield
    finally:
        with suppress(OSError):
            sock.settimeout(before)
