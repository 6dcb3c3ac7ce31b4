"""RabbitMQ through py-amqp: the whole batch is written, then its confirms are awaited.

A message counts as published only after the broker's ack. What the broker refuses with an answer,
or by closing a channel, is that message's error: `pipeline` says how the others are kept out of it.
What costs the connection interrupts the batch, and the relay finds the cause by sending alone.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from amqp.exceptions import AMQPError, Blocked, ConnectionForced
from kombu.common import maybe_declare

from celery_outbox_steps.errors import Outage, describe
from celery_outbox_steps.messages import Receipt
from celery_outbox_steps.publishers.amqp.channel import Delivery
from celery_outbox_steps.publishers.amqp.pipeline import ConnectionState, Pipeline
from celery_outbox_steps.publishers.pool import (
    Deadline,
    connect,
    discard,
    pooled_producer,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_outbox_steps.messages import Message


class AmqpPublisher:
    """Pipelined, confirmed publishing on channels of its own, on connections of the app's pool."""

    lazy = False

    def __init__(self, app: Any, declare: bool = True) -> None:  # noqa: FBT001  a setting
        self.app = app
        self.declare = declare
        self._known: WeakKeyDictionary[Any, ConnectionState] = WeakKeyDictionary()

    def publish(self, messages: Iterable[Message], timeout: float) -> Iterator[Receipt]:
        """See `Publisher.publish`. Order is kept but for what has to go alone."""
        deliveries = [Delivery(index, message) for index, message in enumerate(messages)]
        outage = self._hand_over(deliveries, Deadline(timeout)) if deliveries else None
        for delivery in deliveries:
            if delivery.settled:
                yield Receipt(delivery.index, delivery.error)
        if outage is not None and not all(delivery.settled for delivery in deliveries):
            raise outage  # otherwise it hit only events, which are best effort

    def reachable(self, timeout: float) -> bool:
        """A connection and a channel can be opened; neither has to do with any queue."""
        try:
            with self._living_producer(Deadline(timeout)) as producer:
                producer.connection.connection.channel().close()
        except Outage:
            return False
        return True

    def close(self) -> None:
        """Forget the channels; they end with their connections, which belong to the pool."""
        self._known.clear()

    def _hand_over(self, deliveries: list[Delivery], deadline: Deadline) -> Outage | None:
        """Settle what can be settled. Returns what keeps the rest from being settled."""
        try:
            with self._living_producer(deadline) as producer:
                return self._publish_on(producer, deliveries, deadline)
        except Outage as outage:
            return outage

    @contextmanager
    def _living_producer(self, deadline: Deadline) -> Iterator[Any]:
        """A producer whose connection is alive, with every read and write bounded."""
        with pooled_producer(self.app, deadline) as producer:
            _make_sure_it_lives(producer.connection, deadline)
            with _socket_timeout(producer.connection.connection, deadline.left()):
                try:
                    yield producer
                except ConnectionForced as exc:  # by an operator, or by a broker that shuts down
                    raise Outage(describe(exc)) from exc

    def _publish_on(
        self, producer: Any, deliveries: list[Delivery], deadline: Deadline
    ) -> Outage | None:
        wire = producer.connection.connection
        pipeline = Pipeline(wire, self._state_of(wire), deadline)
        try:
            pipeline.await_unblocked()  # nothing else would be answered, not even a new channel
            self._run(pipeline, producer, deliveries)
            self._run(pipeline, producer, _events_of(deliveries))
        except Blocked as blocked:
            # The connection is kept: the broker reads what lies in a blocked socket later on, also
            # if we close it, so that connecting anew would add one more copy every time.
            pipeline.abandon()
            outage = Outage(describe(blocked))
            outage.__cause__ = blocked
            return outage
        return None

    def _run(self, pipeline: Pipeline, producer: Any, deliveries: list[Delivery]) -> None:
        if self.declare:
            _declare_all(producer, deliveries)
        pipeline.publish([each for each in deliveries if not each.settled])
        _forget_lost_queues(producer.connection, deliveries)

    def _state_of(self, wire: Any) -> ConnectionState:
        if wire not in self._known:
            self._known[wire] = ConnectionState(wire)
        return self._known[wire]


def _events_of(deliveries: list[Delivery]) -> list[Delivery]:
    """The `task-sent` events of what was published: best effort."""
    return [
        Delivery(each.index, each.message.event)
        for each in deliveries
        if each.message.event is not None and each.settled and each.error is None
    ]


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
