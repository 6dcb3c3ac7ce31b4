"""A channel in confirm mode that knows which of its messages the broker has taken.

One channel serves one exchange: what RabbitMQ closes a channel for (a missing or forbidden
exchange) then concerns every message on it and no other, and happens before any of them is routed.
Nothing here decides what to do about a failure; see `amqp` for that.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from amqp import spec
from amqp.exceptions import ChannelError, error_for_code
from kombu import Queue
from kombu.transport.pyamqp import Channel

from celery_outbox_steps.errors import Nacked, Unroutable
from celery_outbox_steps.publishers.amqp.frames import as_amqp

if TYPE_CHECKING:
    from celery_outbox_steps.messages import Message


class Delivery:
    """One message on its way: settled once its fate is known, with or without an error."""

    __slots__ = ("error", "index", "mandatory", "message", "settled")

    def __init__(self, index: int, message: Message) -> None:
        self.index = index
        self.message = message
        self.mandatory = must_be_routed(message)
        self.settled = False
        self.error: Exception | None = None

    def settle(self, error: Exception | None = None) -> None:
        self.settled = True
        self.error = self.error or error


def must_be_routed(message: Message) -> bool:
    """Whether "no queue took it" is a failure.

    It is where the message names its queue. An exchange with no queue behind it is legal in Celery
    (a Broadcast without workers, a topic that nobody listens to) and stays legal here.
    """
    return (
        message.mandatory
        or not message.exchange
        or any(isinstance(entity, Queue) for entity in message.declare)
    )


class ConfirmChannel(Channel):  # type: ignore[misc]  # py-amqp has no type hints
    """Opened and in confirm mode from the start; gone for good after a channel error."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.pending: dict[int, Delivery] = {}
        self.closed_by: Exception | None = None
        self._last_tag = 0
        self.open()
        self.confirm_select()

    def expect(self, delivery: Delivery) -> None:
        """Count a message that is about to be written: tags are the broker's count of them."""
        self._last_tag += 1
        self.pending[self._last_tag] = delivery

    def write(self, message: Message, *, mandatory: bool) -> None:
        """Leave it all to py-amqp: the slow way, for a transport that we don't know."""
        content = as_amqp(message)
        self._basic_publish(content, message.exchange, message.routing_key, mandatory=mandatory)

    def _on_basic_ack(self, delivery_tag: int, multiple: bool) -> None:  # noqa: FBT001
        for delivery in self._take(delivery_tag, multiple):
            delivery.settle()

    def _on_basic_nack(self, delivery_tag: int, multiple: bool) -> None:  # noqa: FBT001
        for delivery in self._take(delivery_tag, multiple):
            delivery.settle(Nacked("the broker refused the message (basic.nack)"))

    def _on_basic_return(
        self, reply_code: int, reply_text: str, exchange: str, routing_key: str, message: Any
    ) -> None:
        # The broker returns first and acks afterwards, so the ack settles it, as a failure.
        delivery = self._find_returned(routing_key, message)
        if delivery is not None:
            delivery.error = Unroutable(
                f"{reply_code} {reply_text}: no queue for routing key {routing_key!r} "
                f"of exchange {exchange!r}"
            )

    def _on_close(self, reply_code: int, reply_text: str, class_id: int, method_id: int) -> None:
        # py-amqp would open the channel again by itself, with a new count of tags.
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
        # Returns come in the order of publishing. Of two that are alike in all that is compared
        # here either may be blamed: they are the same message twice.
        candidates = [
            delivery
            for delivery in self.pending.values()
            if delivery.mandatory
            and delivery.error is None
            and delivery.message.routing_key == routing_key
        ]
        alike = (delivery for delivery in candidates if _alike(delivery.message, message))
        return next(alike, candidates[0] if candidates else None)


def _alike(ours: Message, returned: Any) -> bool:
    properties = returned.properties
    return (
        properties.get("correlation_id") == ours.properties.get("correlation_id")
        and properties.get("message_id") == ours.properties.get("message_id")
        and _as_bytes(returned.body) == ours.body
    )


def _as_bytes(body: bytes | str) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body)
