"""Any transport of kombu: one message at a time, through the public `Producer.publish`.

Lazy: the next message is sent when the caller requests the next receipt. Nothing is retried here.
The `task-sent` event of a message follows it; losing one never fails the message.
"""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from kombu.common import maybe_declare

from celery_outbox_steps.classify import concerns_connection
from celery_outbox_steps.errors import Outage
from celery_outbox_steps.messages import Receipt
from celery_outbox_steps.observe.log import log
from celery_outbox_steps.publishers.pool import Deadline, discard, pooled_producer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_outbox_steps.messages import Message


class GenericPublisher:
    """One `Producer.publish` per message."""

    lazy = True

    def __init__(self, app: Any, declare: bool = True) -> None:  # noqa: FBT001  a setting
        self.app = app
        self.declare = declare

    def publish(self, messages: Iterable[Message], timeout: float) -> Iterator[Receipt]:
        """See `Publisher.publish`. Ends early, without receipts, once `timeout` has passed."""
        deadline = Deadline(timeout)
        with pooled_producer(self.app, deadline) as producer:
            yield from self._one_by_one(producer, messages, deadline)

    def reachable(self, timeout: float) -> bool:
        """Whether the directory of the filesystem transport is writable. For other transports this
        is unknown (False): connecting proves nothing.
        """
        with suppress(Outage), pooled_producer(self.app, Deadline(timeout)) as producer:
            folder = getattr(producer.channel, "data_folder_out", None)
            if folder is not None:
                with TemporaryFile(dir=folder) as file:
                    file.write(b".")
                    file.flush()
                return True
        return False

    def close(self) -> None:
        """Nothing is kept between two batches."""

    def _one_by_one(
        self, producer: Any, messages: Iterable[Message], deadline: Deadline
    ) -> Iterator[Receipt]:
        for position, message in enumerate(messages):
            if position and deadline.passed():
                return
            yield Receipt(position, self._attempt(producer, message))

    def _attempt(self, producer: Any, message: Message) -> Exception | None:
        """Publish one message. Returns its own error; raises if the connection seems to be lost."""
        try:
            publish_through_kombu(producer, message, declare=self.declare)
        except Exception as exc:
            if concerns_connection(exc, producer.connection.connection_errors):
                raise
            return exc
        send_event(producer, message, declare=self.declare)
        return None


def publish_through_kombu(producer: Any, message: Message, *, declare: bool) -> None:
    """Publish with kombu's producer, such that the broker gets exactly the message of the row."""
    if declare:
        declare_missing(producer, message)
    properties = message.properties
    if properties.get("expiration") is not None:
        # kombu wants seconds and truncates milliseconds: 1.001 s would become 1000 ms.
        properties = {**properties, "expiration": Fraction(properties["expiration"]) / 1000}
    producer.publish(
        message.body,
        routing_key=message.routing_key,
        exchange=message.exchange,
        priority=message.priority,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=message.headers,
        mandatory=message.mandatory,
        retry=False,
        **properties,
    )


def declare_missing(producer: Any, message: Message) -> None:
    """Like kombu's `maybe_declare`, which binds a copy of the entity before it reads its cache."""
    declared = producer.connection.declared_entities
    for entity in message.declare:
        if hash(entity) not in declared:
            maybe_declare(entity, producer.channel)


def send_event(producer: Any, message: Message, *, declare: bool) -> bool:
    """The `task-sent` event: for monitors, best effort. False if it was not sent."""
    if message.event is None:
        return True
    try:
        publish_through_kombu(producer, message.event, declare=declare)
    except Exception:  # noqa: BLE001  the message itself was sent, and only that matters
        log("celery_outbox_event_lost", exc_info=True)
        if not producer.connection.connected:
            discard(producer.connection)
        return False
    return True
