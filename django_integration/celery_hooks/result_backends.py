"""Results without a connection at enqueue: a subscription waits until somebody waits for a result.

The Redis and rpc backends subscribe to each result as soon as a task is called, or as soon as a
group or chain is put together. That is too early for a call that must work while they are away. A
result that arrives before its subscription is not missed: whoever waits also looks for it first.
"""

from __future__ import annotations

import functools
from typing import Any

from celery._state import task_join_will_block

from django_integration.enqueue.capture import CapturingProducer


def stay_offline(backend: Any) -> None:
    """Make a result backend connect when a result is waited for, and not before."""
    if "on_task_call" in vars(backend):
        return
    backend.on_task_call = _unless_captured(backend)
    if hasattr(backend, "result_consumer"):
        _subscribe_late(backend.result_consumer)


def _unless_captured(backend: Any) -> Any:
    """The backend's own `on_task_call`, but not for a message that is only captured.

    The rpc backend would declare its reply queue; the relay does that, before it publishes.
    """
    original = backend.on_task_call

    @functools.wraps(original)
    def on_task_call(producer: Any, task_id: str) -> Any:
        if not isinstance(producer, CapturingProducer):
            return original(producer, task_id)
        if hasattr(backend, "binding") and not task_join_will_block():
            producer.maybe_declare(backend.binding)
        return None

    return on_task_call


def _subscribe_late(consumer: Any) -> None:
    subscribe, cancel = consumer.consume_from, consumer.cancel_for
    on_wait = consumer.on_wait_for_pending
    wanted: dict[str, None] = {}

    def consume_from(task_id: str) -> None:
        wanted[task_id] = None

    def cancel_for(task_id: str) -> None:
        if wanted.pop(task_id, cancel) is cancel:  # it was not among them
            cancel(task_id)

    def on_wait_for_pending(*args: Any, **kwargs: Any) -> Any:
        for task_id in tuple(wanted):
            if wanted.pop(task_id, cancel) is not cancel:  # another thread may have been faster
                subscribe_or_keep(task_id)
        return on_wait(*args, **kwargs)

    def subscribe_or_keep(task_id: str) -> None:
        try:
            subscribe(task_id)
        except BaseException:
            wanted[task_id] = None
            raise

    consumer.consume_from, consumer.cancel_for = consume_from, cancel_for
    consumer.on_wait_for_pending = on_wait_for_pending
