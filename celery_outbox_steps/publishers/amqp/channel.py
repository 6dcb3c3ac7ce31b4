"""A channel in confirm mode that tracks which of its messages the broker has answered.

One channel serves one exchange: RabbitMQ closes a channel for a missing or forbidden exchange, and
this then affects exactly the messages on it, before any of them is routed. Nothing here decides
what to do about a failure; `pipeline` does.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from amqp import spec
from amqp.exceptions import ChannelError, error_for_code
from kombu import Queue

from celery_outbox_steps.errors import Nacked, Unroutable
from celery_outbox_steps.upstream.amqp import Channel, Wire, as_amqp

if TYPE_CHECKING:
    from celery_outbox_steps.messages import Message


class Delivery:
    """One message of a batch: answered once the broker accepts or refuses it, or sending fails."""

    __slots__ = ("answered", "error", "index", "mandatory", "message")

    def __init__(self, index: int, message: Message) -> None:
        self.index = index
        self.message = message
        self.answered = False
        self.error: Exception | None = None
        # "No queue received it" is an error if the message names its queue. An exchange without
        # queues is legal in Celery (a Broadcast without workers, a topic without subscribers) and
        # stays legal here.
        self.mandatory = (
            message.mandatory
            or not message.exchange
            or any(isinstance(entity, Queue) for entity in message.declare)
        )

    def fail(self, error: Exception) -> None:
        """Answer it with an error; the first error counts."""
        self.answered = True
        self.error = self.error or error


class ConfirmChannel(Channel):  # type: ignore[misc]  # py-amqp has no type hints
    """Open and in confirm mode from the start; unusable after a channel error.

    The underscored methods are py-amqp's hooks: see `upstream.amqp.CHANNEL_HOOKS`.
    """

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self.pending: dict[int, Delivery] = {}
        self.closed_by: Exception | None = None
        self._last_tag = 0
        self.open()
        self.confirm_select()

    def expect(self, delivery: Delivery) -> None:
        """Register a message that is about to be written. The broker numbers them from 1."""
        self._last_tag += 1
        self.pending[self._last_tag] = delivery

    def write(self, message: Message, *, mandatory: bool) -> None:
        """Let py-amqp write it: slower, for transports that `write_frames` does not support."""
        content = as_amqp(message)
        self._basic_publish(content, message.exchange, message.routing_key, mandatory=mandatory)

    def _on_basic_ack(self, delivery_tag: int, multiple: bool) -> None:  # noqa: FBT001
        for delivery in self._take(delivery_tag, multiple):
            delivery.answered = True

    def _on_basic_nack(self, delivery_tag: int, multiple: bool) -> None:  # noqa: FBT001
        for delivery in self._take(delivery_tag, multiple):
            delivery.fail(Nacked("the broker refused the message (basic.nack)"))

    def _on_basic_return(
        self, reply_code: int, reply_text: str, exchange: str, routing_key: str, message: Any
    ) -> None:
        # The broker returns the message first and acks it afterwards: the ack is the answer.
        delivery = self._find_returned(routing_key, message)
        if delivery is not None:
            delivery.error = Unroutable(
                f"{reply_code} {reply_text}: no queue for routing key {routing_key!r} "
                f"of exchange {exchange!r}"
            )

    def _on_close(self, reply_code: int, reply_text: str, class_id: int, method_id: int) -> None:
        # py-amqp would reopen the channel itself, and delivery tags would start at 1 again.
        self.send_method(spec.Channel.CloseOk)
        method = (class_id, method_id)
        self.closed_by = error_for_code(reply_code, reply_text, method, ChannelError)
        self.pending.clear()
        self.collect()

    def _take(self, tag: int, multiple: bool) -> list[Delivery]:  # noqa: FBT001
        pending = self.pending
        if not multiple:
            return [pending.pop(tag)] if tag in pending else []
        tags = list(takewhile(lambda each: each <= tag, pending))
        return [pending.pop(each) for each in tags]

    def _find_returned(self, routing_key: str, message: Any) -> Delivery | None:
        # Returns come in the order of publishing. If two are equal in everything compared here,
        # they are the same message twice, and either may get the error.
        candidates = [
            delivery
            for delivery in self.pending.values()
            if delivery.mandatory
            and delivery.error is None
            and delivery.message.routing_key == routing_key
        ]
        equal = (delivery for delivery in candidates if _is_same(delivery.message, message))
        return next(equal, candidates[0] if candidates else None)


def _is_same(ours: Message, returned: Any) -> bool:
    properties = returned.properties
    return (
        properties.get("correlation_id") == ours.properties.get("correlation_id")
        and properties.get("message_id") == ours.properties.get("message_id")
        and _as_bytes(returned.body) == ours.body
    )


def _as_bytes(body: bytes | str) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body)
