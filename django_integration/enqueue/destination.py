"""The option `outbox_destination` of a call: the broker of another Celery installation.

The message is the one that Celery builds for every call. It goes to the queue that the call names,
or else to that of the destination, and not where this app routes its own tasks. Next: `capture.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu import Exchange, Queue

from celery_outbox_steps.errors import OutboxError

if TYPE_CHECKING:
    from celery_outbox_steps.destinations import Destination
    from django_integration.enqueue.keys import WantedKey
    from django_integration.enqueue.settings import EnqueueSettings

DESTINATION = "outbox_destination"
ROUTING = ("queue", "exchange", "routing_key")


def take_destination(
    options: dict[str, Any], settings: EnqueueSettings, key: WantedKey | None
) -> Destination | None:
    """Take the option out of those of a call, which then has a queue. None: it names none."""
    name = options.pop(DESTINATION)
    if name is None:
        return None
    destination = settings.destination(name)
    if key is not None:
        raise OutboxError(
            f"A call with {DESTINATION} can't have an outbox_key: only calls for the app's own"
            " broker are compared by it."
        )
    if not any(options.get(each) for each in ROUTING):
        options["queue"] = _queue_of(destination)
    return destination


def _queue_of(destination: Destination) -> Queue:
    if not destination.queue:
        raise OutboxError(
            f'Name the queue of the task, as in apply_async(queue="celery"), or give destination'
            f' {destination.name!r} a "queue".'
        )
    return Queue(destination.queue, Exchange(destination.queue), destination.queue)
