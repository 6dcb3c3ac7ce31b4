"""Publishers send batches of messages to the broker and report the result of each message.

`publisher_for(app)` picks the one for the app's broker, or for that of a destination (`broker.py`);
`base.Publisher` is their contract. They borrow producers from `app.producer_pool` and open no
connections of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_outbox_steps.publishers.base import Publisher

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Publisher", "publisher_for"]


def publisher_for(app: Any, declare: bool = True) -> Publisher:  # noqa: FBT001  a setting
    """The publisher for the app's write connection. Does not connect."""
    return _publisher_class(app.producer_pool.connections.connection.transport)(app, declare)


def _publisher_class(transport: Any) -> Callable[[Any, bool], Publisher]:
    if (transport.driver_type, transport.driver_name) == ("amqp", "py-amqp"):
        from celery_outbox_steps.publishers.amqp.publisher import AmqpPublisher

        return AmqpPublisher
    if transport.driver_type == "redis":
        from celery_outbox_steps.publishers.redis import RedisPublisher

        return RedisPublisher
    from celery_outbox_steps.publishers.generic import GenericPublisher

    return GenericPublisher
