"""The option `outbox_destination` of a call: the broker of another Celery installation.

The message is the one that Celery builds for every call. It goes to the queue that the call names,
or else to that of the destination, and not where this app routes its own tasks. What follows a task
(chain, links) is sent by the installation that runs it. Next: `capture.py`.
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
FOLLOWING = ("chain", "link", "link_error")


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
    if options.get("chord"):
        raise OutboxError(
            f"A task of a chord's header can't have {DESTINATION}: the workers of"
            f" {destination.name!r} do not count in this app's result backend, so the body would"
            " never run. The body of a chord can."
        )
    if any(_names_destination(options.get(each)) for each in FOLLOWING):
        raise OutboxError(
            f"A task that follows one for {destination.name!r} can't have {DESTINATION}: it is"
            " sent by the worker that runs the task before it. Leave it out there, and it stays"
            " with that installation."
        )
    _route(options, destination)
    return destination


def refuse_destination(options: dict[str, Any]) -> None:
    """For a retry or a replacement, which continues a task of this installation."""
    if options.pop(DESTINATION, None) is not None:
        raise OutboxError(
            f"A retry or replacement can't have {DESTINATION}: the task goes on where it began."
            f" Call another task with {DESTINATION} instead."
        )


def _route(options: dict[str, Any], destination: Destination) -> None:
    """The queue of the destination, unless the call names where to. The task's own attributes do
    not count: they are of this app's broker."""
    task = options.get("task_type")
    named = [
        each for each in ROUTING if options.get(each) and options[each] != getattr(task, each, None)
    ]
    if named:
        return
    if destination.queue:
        for each in ROUTING:
            options.pop(each, None)
        if options.get("priority") is None:  # as Celery does for its default queue alone
            options.pop("priority", None)
        options["queue"] = Queue(destination.queue, Exchange(destination.queue), destination.queue)
    elif not any(options.get(each) for each in ROUTING):
        raise OutboxError(
            f'Name the queue of the task, as in apply_async(queue="celery"), or give destination'
            f' {destination.name!r} a "queue".'
        )


def _names_destination(signatures: Any) -> bool:
    """Whether one of these signatures, or of those in them, has the option."""
    if isinstance(signatures, dict):
        options = signatures.get("options")
        if isinstance(options, dict) and options.get(DESTINATION) is not None:
            return True
        return any(map(_names_destination, signatures.values()))
    return isinstance(signatures, (list, tuple)) and any(map(_names_destination, signatures))
