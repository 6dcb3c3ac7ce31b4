"""RabbitMQ through py-amqp: the whole batch is written, then its confirms are awaited.

A message counts as published only after the broker's ack. A refusal, with an answer or by closing a
channel, is that message's own error; `pipeline` protects the other messages from it. An error that
ends the connection interrupts the batch: the relay then sends the messages one by one to find the
cause. The next step of the path is `pipeline`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from amqp.exceptions import AMQPError, Blocked, ConnectionForced
from kombu.common import maybe_declare

from celery_outbox_steps.errors import Outage, describe
from celery_outbox_steps.messages import Receipt
from celery_outbox_steps.publishers.amqp.channel import Delivery
from celery_outbox_steps.publishers.amqp.pipeline import ConnectionState, Pipeline
from celery_outbox_steps.publishers.pool import Deadline, connect, discard, pooled_producer
from celery_outbox_steps.upstream.amqp import socket_timeout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_outbox_steps.messages import Message
    from celery_outbox_steps.upstream.amqp import Wire


class AmqpPublisher:
    """Pipelined, confirmed publishing on its own channels, on connections of the app's pool."""

    lazy = False

    def __init__(self, app: Any, declare: bool = True) -> None:  # noqa: FBT001  a setting
        self.app = app
        self.declare = declare
        self._states: WeakKeyDictionary[Wire, ConnectionState] = WeakKeyDictionary()

    def publish(self, messages: Iterable[Message], timeout: float) -> Iterator[Receipt]:
        """See `Publisher.publish`. Keeps the order, except for messages that are sent alone."""
        deliveries = [Delivery(index, message) for index, message in enumerate(messages)]
        outage = self._deliver(deliveries, Deadline(timeout)) if deliveries else None
        for delivery in deliveries:
            if delivery.answered:
                yield Receipt(delivery.index, delivery.error)
        if outage is not None and not all(delivery.answered for delivery in deliveries):
            raise outage  # otherwise it affected only events, which are best effort

    def reachable(self, timeout: float) -> bool:
        """Whether a connection and a channel can be opened, which needs no queue or exchange."""
        try:
            with self._live_producer(Deadline(timeout)) as producer:
                producer.connection.connection.channel().close()
        except Outage:
            return False
        return True

    def close(self) -> None:
        """Drop the channels; they end with their connections, which belong to the pool."""
        self._states.clear()

    def _deliver(self, deliveries: list[Delivery], deadline: Deadline) -> Outage | None:
        """Get as many answers as possible. Returns the outage that prevented the others."""
        try:
            with self._live_producer(deadline) as producer:
                wire = producer.connection.connection
                if wire not in self._states:
                    self._states[wire] = ConnectionState(wire)
                pipeline = Pipeline(wire, self._states[wire], deadline)
                try:
                    self._send_with_events(pipeline, producer, deliveries)
                except Blocked as blocked:
                    # The connection is kept: the broker reads what is in a blocked socket later,
                    # even if we close it, so each new connection would add one more copy.
                    pipeline.abandon()
                    outage = Outage(describe(blocked))
                    outage.__cause__ = blocked
                    return outage
        except Outage as exc:
            return exc
        return None

    @contextmanager
    def _live_producer(self, deadline: Deadline) -> Iterator[Any]:
        """A producer whose connection is alive, with a timeout for every read and write."""
        with pooled_producer(self.app, deadline) as producer:
            _reconnect_if_lost(producer.connection, deadline)
            with socket_timeout(producer.connection.connection, deadline.remaining()):
                try:
                    yield producer
                except ConnectionForced as exc:  # closed by an operator, or by a broker's shutdown
                    raise Outage(describe(exc)) from exc

    def _send_with_events(
        self, pipeline: Pipeline, producer: Any, deliveries: list[Delivery]
    ) -> None:
        """Send the messages, and then the `task-sent` events of those that the broker accepted."""
        pipeline.await_unblocked()  # a blocked connection gets no answers, not even to channel.open
        self._send(pipeline, producer, deliveries)
        events = [
            Delivery(each.index, each.message.event)
            for each in deliveries
            if each.message.event is not None and each.answered and each.error is None
        ]
        if events:
            self._send(pipeline, producer, events)

    def _send(self, pipeline: Pipeline, producer: Any, deliveries: list[Delivery]) -> None:
        if self.declare:
            _declare_all(producer, deliveries)
        pipeline.send_all(deliveries)
        for delivery in deliveries:
            if delivery.error is not None:  # its queue may be gone: declare it again next time
                for entity in delivery.message.declare:
                    producer.connection.declared_entities.discard(hash(entity))


def _reconnect_if_lost(connection: Any, deadline: Deadline) -> None:
    """Replace a connection that was lost while it was in the pool, before anything is written."""
    try:
        while True:
            connection.connection.drain_events(timeout=0)
    except TimeoutError:
        return
    except (OSError, AMQPError):
        discard(connection)
        connect(connection, deadline)


def _declare_all(producer: Any, deliveries: list[Delivery]) -> None:
    """Declare each entity once per connection. A refusal fails the messages that need it."""
    declared = producer.connection.declared_entities
    tried: dict[int, Exception | None] = {}
    for delivery in deliveries:
        for entity in delivery.message.declare:
            key = hash(entity)
            if key not in tried:
                tried[key] = None if key in declared else _declare(entity, producer)
            error = tried[key]
            if error is not None:
                delivery.fail(error)
                break


def _declare(entity: Any, producer: Any) -> Exception | None:
    # On the producer's own channel: the broker closes it on a refusal, and py-amqp reopens it.
    try:
        maybe_declare(entity, producer.channel)
    except OSError:
        raise
    except Exception as exc:
        if not producer.connection.connected:
            raise
        return exc
    return None
