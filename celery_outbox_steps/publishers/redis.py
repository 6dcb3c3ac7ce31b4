"""Redis: one pipeline per batch, or message by message if kombu says that a pipeline is not safe.

Messages to queues (Celery's default) are pushed with one `LPUSH queue, message, …` per queue, so
that Redis answers for each queue; messages to exchanges go through kombu's `Producer.batch()`
(5.7), which has one answer for all. Without an answer it is unknown which messages arrived: the
batch is interrupted, the relay sends them again, and they may arrive twice.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kombu.utils.json import JSONEncoder

from celery_outbox_steps.classify import concerns_connection, refuses_everything
from celery_outbox_steps.errors import Interrupted, Outage
from celery_outbox_steps.messages import Receipt
from celery_outbox_steps.publishers.generic import (
    GenericPublisher,
    declare_missing,
    publish_through_kombu,
    send_event,
)
from celery_outbox_steps.publishers.pool import Deadline, discard, pooled_producer
from celery_outbox_steps.upstream.kombu import expiring_queues, list_name, pushes_to_lists

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from celery_outbox_steps.messages import Message

Answers = dict[int, Exception | None]
"""By position: the error of a message that Redis refused, None for one that it accepted."""
FLUSH_AT = 4 * 1024 * 1024
"""Bytes after which a pipeline is sent: kombu, redis-py and Redis each hold all of it in memory."""
_UNLIMITED = 1_000_000
_to_json = JSONEncoder().encode


class RedisPublisher(GenericPublisher):
    """Pipelined if kombu supports it, otherwise one by one."""

    lazy = False
    _longest = 0.0

    def publish(self, messages: Iterable[Message], timeout: float) -> Iterator[Receipt]:
        """See `Publisher.publish`."""
        answers: Answers = {}
        outage: Outage | None = None
        try:
            self._send(messages, answers, timeout)
        except Outage as exc:
            outage = exc
        for position, error in answers.items():
            yield Receipt(position, error)
        if outage is not None:
            raise outage

    def reachable(self, timeout: float) -> bool:
        """Whether Redis answers a PING."""
        try:
            with self._producer(Deadline(timeout), timeout) as producer:
                producer.channel.client.ping()
        except Outage:
            return False
        return True

    def _send(self, messages: Iterable[Message], answers: Answers, timeout: float) -> None:
        deadline = Deadline(timeout)
        try:
            with self._producer(deadline, timeout) as producer:
                if getattr(producer, "supports_batch_publish", False):  # kombu 5.7
                    batch = RedisBatch(producer, answers, deadline, declare=self.declare)
                    batch.send_all(messages)
                    return
                for position, error in self._one_by_one(producer, messages, deadline):
                    answers[position] = error
        except Interrupted as exc:
            if refuses_everything(exc):
                # Redis answers, but accepts no message: it is out of memory, or a replica now.
                raise Outage(str(exc)) from exc
            raise

    def _producer(self, deadline: Deadline, timeout: float) -> AbstractContextManager[Any]:
        # The longest timeout so far, because a new limit needs a new connection.
        self._longest = max(self._longest, timeout)
        return pooled_producer(self.app, deadline, prepare=_bound_waits(self._longest))


class RedisBatch:
    """One batch through one producer. Serialised messages are not kept, to save memory."""

    def __init__(
        self, producer: Any, answers: Answers, deadline: Deadline, *, declare: bool
    ) -> None:
        self._producer = producer
        self._answers = answers
        self._deadline = deadline
        self._declare = declare
        self._pushes = _Pushes(producer.channel)
        self._for_kombu: dict[int, Message] = {}
        self._events: dict[int, Message] = {}

    def send_all(self, messages: Iterable[Message]) -> None:
        for position, message in enumerate(messages):
            self._add(position, message)
        self._flush()
        self._send_through_kombu()
        self._send_events()

    def _add(self, position: int, message: Message) -> None:
        if message.event is not None:
            self._events[position] = message
        if not self._pushes.can_take(message):
            self._for_kombu[position] = message
            return
        try:
            if self._declare:
                declare_missing(self._producer, message)
            self._pushes.add(position, message)
        except Exception as exc:  # noqa: BLE001  raised again if it is not this message's failure
            self._note_failure(position, exc)
        if self._pushes.size > FLUSH_AT:
            self._flush()

    def _flush(self) -> None:
        self._deadline.refuse_if_passed()
        self._pushes.flush(self._answers)

    def _send_through_kombu(self) -> None:
        if not self._for_kombu:
            return
        self._deadline.refuse_if_passed()
        with self._producer.batch(max_size=_UNLIMITED):  # raises if it is unknown what arrived
            added = [each for each in self._for_kombu.items() if self._queue_up(*each)]
        self._answers.update((position, None) for position, _ in added)

    def _queue_up(self, position: int, message: Message) -> bool:
        """Add a message to kombu's pipeline. False if that failed."""
        try:
            publish_through_kombu(self._producer, message, declare=self._declare)
        except Exception as exc:  # noqa: BLE001  raised again if it is not this message's failure
            self._note_failure(position, exc)
            return False
        return True

    def _note_failure(self, position: int, error: Exception) -> None:
        """The message has failed, unless the connection is lost or Redis accepts nothing."""
        if concerns_connection(error, self._producer.connection.connection_errors):
            raise error
        self._answers[position] = error

    def _send_events(self) -> None:
        """Send until the deadline: if Redis stops answering, it must not cost a wait per event."""
        for position, message in self._events.items():
            if self._deadline.passed():
                return
            if self._answers[position] is None:
                send_event(self._producer, message, declare=self._declare)


class _Pushes:
    """Messages to push, by Redis list, in the form in which kombu would push them."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.size = 0
        self._lists: dict[str, _List] = defaultdict(_List)
        self._keys: dict[tuple[str, Any], str] = {}
        self._pushes_to_lists = pushes_to_lists(channel)
        self._expiring = expiring_queues(channel)
        start = str(uuid4())[:-12]
        self._tags = (f"{start}{number:012x}" for number in count())
        """UUIDs as kombu makes them, but with one read of the system's randomness per batch."""

    def can_take(self, message: Message) -> bool:
        # With each push kombu renews the keys of queues that expire, so these are left to kombu.
        return self._pushes_to_lists and not message.exchange and not self._expiring

    def add(self, index: int, message: Message) -> None:
        channel = self.channel
        body, body_encoding = channel.encode_body(message.body, channel.body_encoding)
        prepared = channel.prepare_message(
            body,
            message.priority,
            message.content_type,
            message.content_encoding,
            message.headers,
            dict(message.properties),
        )
        # In kombu's own order, so that not even the JSON text differs from a direct publish.
        properties = prepared["properties"]
        properties["delivery_info"].update(exchange="", routing_key=message.routing_key)
        properties.update(body_encoding=body_encoding, delivery_tag=next(self._tags))
        data = _to_json(prepared)
        self._lists[self._key(message, prepared)].append(index, data)
        self.size += len(data)

    def _key(self, message: Message, prepared: dict[str, Any]) -> str:
        """The list of a message, which depends on its routing key and priority only."""
        route = message.routing_key, message.priority
        if route not in self._keys:
            self._keys[route] = list_name(self.channel, message.routing_key, prepared)
        return self._keys[route]

    def flush(self, answers: Answers) -> None:
        """Push everything. Redis answers per list; without any answer redis-py raises."""
        lists, self._lists, self.size = self._lists, defaultdict(_List), 0
        if not lists:
            return
        with self.channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            for key, entries in lists.items():
                pipe.lpush(key, *entries.texts)
            replies = pipe.execute(raise_on_error=False)
        failure: Exception | None = None
        for entries, reply in zip(lists.values(), replies, strict=True):
            error = reply if isinstance(reply, Exception) else None
            if error is not None and (len(entries.indexes) > 1 or refuses_everything(error)):
                failure = error  # none of them was pushed, and any of them may be the cause
            else:
                answers.update(dict.fromkeys(entries.indexes, error))
        if failure is not None:
            raise failure


class _List:
    """The texts for one Redis list, and the positions of their messages."""

    def __init__(self) -> None:
        self.indexes: list[int] = []
        self.texts: list[str] = []

    def append(self, index: int, text: str) -> None:
        self.indexes.append(index)
        self.texts.append(text)


def _bound_waits(timeout: float) -> Any:
    """By default kombu sets no socket timeout: it would wait forever if Redis does not answer."""

    def prepare(connection: Any) -> None:
        options = connection.transport_options or {}
        if (options.get("socket_timeout") or timeout + 1) > timeout:
            discard(connection)
            limits = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
            connection.transport_options = {**options, **limits}

    return prepare
