"""Redis: one pipeline per batch; one by one where kombu says that a pipeline is not safe.

What goes straight to a queue (Celery's default) is pushed with one `LPUSH queue, message, …` per
queue, so that Redis answers for every queue; the rest goes through kombu's `Producer.batch()`
(5.7), which has one answer for all. Without an answer nobody knows what arrived: those messages
are tried again and may arrive twice.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kombu.utils.json import JSONEncoder

from celery_outbox_steps.classify import Verdict, classify
from celery_outbox_steps.messages import Receipt
from celery_outbox_steps.publishers.borrow import (
    Deadline,
    blame_nobody,
    borrowed_producer,
    discard,
)
from celery_outbox_steps.publishers.generic import (
    GenericPublisher,
    declare_missing,
    hand_over,
    send_event,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_outbox_steps.messages import Message

FLUSH_AT = 4 * 1024 * 1024
"""Bytes of a pipeline: kombu, redis-py and Redis each hold all of it in memory."""
_UNLIMITED = 1_000_000
_to_json = JSONEncoder().encode


class RedisPublisher(GenericPublisher):
    """Pipelined where kombu can, one by one where it can't."""

    lazy = False

    def publish(self, messages: Sequence[Message], timeout: float) -> Iterator[Receipt]:
        """See `Publisher.publish`."""
        deadline = Deadline(timeout)
        batch = _Batch(messages, declare=self.declare)
        answered = 0
        try:
            with borrowed_producer(self.app, deadline, prepare=_bound_waits(timeout)) as producer:
                if getattr(producer, "supports_batch_publish", False):  # kombu 5.7
                    batch.publish(producer)
                else:
                    for receipt in self._one_by_one(producer, messages, deadline):
                        answered += 1
                        yield receipt
        except Exception as exc:  # noqa: BLE001  a publisher answers for every message, it never raises
            batch.fail_rest(blame_nobody(exc), start=answered)
        yield from batch.receipts()


class _Batch:
    """One batch on one producer: which messages are decided, and how."""

    def __init__(self, messages: Sequence[Message], *, declare: bool) -> None:
        self.messages = messages
        self.declare = declare
        self.fates: dict[int, Exception | None] = {}

    def receipts(self) -> Iterator[Receipt]:
        return (Receipt(index, error) for index, error in self.fates.items())

    def fail_rest(self, error: Exception, start: int = 0) -> None:
        for index in range(start, len(self.messages)):
            self.fates.setdefault(index, error)

    def publish(self, producer: Any) -> None:
        pushes = _Pushes(producer.channel)
        others = [
            index
            for index, message in enumerate(self.messages)
            if not self._push(pushes, index, message, producer)
        ]
        pushes.flush(self.fates)
        self._through_kombu(producer, others)
        self._send_events(producer)
        self._leave_if_away()

    def _push(self, pushes: _Pushes, index: int, message: Message, producer: Any) -> bool:
        """Have it pushed, or its failure noted. False if it has to take kombu's way."""
        if not pushes.can_take(message):
            return False
        try:
            if self.declare:
                declare_missing(producer, message)
            pushes.add(index, message)
        except Exception as exc:  # noqa: BLE001  raised again if it is not this message's failure
            self._note_failure(index, exc, producer)
        if pushes.size > FLUSH_AT:
            pushes.flush(self.fates)
        return True

    def _through_kombu(self, producer: Any, indexes: list[int]) -> None:
        if not indexes:
            return
        with producer.batch(max_size=_UNLIMITED):
            added = [index for index in indexes if self._hand_over(producer, index)]
        self.fates.update(dict.fromkeys(added))

    def _hand_over(self, producer: Any, index: int) -> bool:
        try:
            hand_over(producer, self.messages[index], declare=self.declare)
        except Exception as exc:  # noqa: BLE001  raised again if it is not this message's failure
            self._note_failure(index, exc, producer)
            return False
        return True

    def _note_failure(self, index: int, error: Exception, producer: Any) -> None:
        """One message's failure, unless Redis is away: that is everybody's."""
        if classify(error, producer.connection.connection_errors) is Verdict.OUTAGE:
            raise error
        self.fates[index] = error

    def _leave_if_away(self) -> None:
        """A server that answers and takes nothing may be a replica now: connect anew next time."""
        for error in self.fates.values():
            if error is not None and classify(error) is Verdict.OUTAGE:
                raise error

    def _send_events(self, producer: Any) -> None:
        sent = [index for index, error in self.fates.items() if error is None]
        for index in sent:
            send_event(producer, self.messages[index], declare=self.declare)


class _Pushes:
    """Messages for lists, as kombu would push them, gathered by list."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.size = 0
        self._lists: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self._familiar = _is_familiar(channel)
        self._tag = uuid4().int >> 16 << 16  # random, with room to count

    def can_take(self, message: Message) -> bool:
        # A queue with an expiry has its keys renewed with every push: left to kombu.
        channel = self.channel
        return self._familiar and not message.exchange and not channel._expires  # noqa: SLF001

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
        properties.update(body_encoding=body_encoding, delivery_tag=self._next_tag())
        priority = channel._get_message_priority(prepared, reverse=False)  # noqa: SLF001
        data = _to_json(prepared)
        key = channel._q_for_pri(message.routing_key, priority)  # noqa: SLF001
        self._lists[key].append((index, data))
        self.size += len(data)

    def _next_tag(self) -> str:
        """A UUID as kombu would make, without asking the system for randomness each time."""
        self._tag += 1
        text = f"{self._tag:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def flush(self, fates: dict[int, Exception | None]) -> None:
        """Push everything. Redis answers per list; no answer at all is an exception."""
        lists, self._lists, self.size = self._lists, defaultdict(list), 0
        if not lists:
            return
        with self.channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            for key, entries in lists.items():
                pipe.lpush(key, *(data for _, data in entries))
            answers = pipe.execute(raise_on_error=False)
        for entries, answer in zip(lists.values(), answers, strict=True):
            error = answer if isinstance(answer, Exception) else None
            fates.update((index, error) for index, _ in entries)


def _is_familiar(channel: Any) -> bool:
    """Whether pushing is still done as it was when this was written; else kombu does it."""
    from kombu.transport import redis, virtual

    kind = type(channel)
    return (
        getattr(kind, "_put", None) is redis.Channel._put  # noqa: SLF001
        and kind.basic_publish is virtual.Channel.basic_publish
        and kind._inplace_augment_message is virtual.Channel._inplace_augment_message  # noqa: SLF001
    )


def _bound_waits(timeout: float) -> Any:
    """kombu sets no socket timeout by default, and would wait for a silent Redis for ever."""

    def prepare(connection: Any) -> None:
        options = connection.transport_options or {}
        if (options.get("socket_timeout") or timeout + 1) > timeout:
            discard(connection)
            limits = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
            connection.transport_options = {**options, **limits}

    return prepare
