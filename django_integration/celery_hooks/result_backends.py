"""Results without a connection at enqueue: the subscription is made by the first wait for a result.

The Redis and rpc backends subscribe to each result as soon as a task is called, or as soon as a
group or chain is built. That is too early for a call that must work while they are unavailable. A
result that arrives before its subscription is not missed: waiting for a result first looks it up.
A wait that could not end, because the caller has not committed the call, is refused.
"""

from __future__ import annotations

import functools
from typing import Any

from django_integration.enqueue.capture import CapturingProducer
from django_integration.enqueue.uncommitted import refuse_to_wait
from django_integration.upstream.celery import task_join_will_block


def stay_offline(backend: Any) -> None:
    """Make a result backend connect when a result is waited for, and not before."""
    backend.on_task_call = _unless_captured(backend)
    if hasattr(backend, "result_consumer"):
        _subscribe_late(backend.result_consumer)


def refuse_endless_waits(backend: Any) -> None:
    """Check what is waited for first.

    Every kind of result waits in one of these two methods of its backend, and a set of results in
    the second, if the backend has its own way for sets.
    """
    for name in ("wait_for_pending", "iter_native"):
        setattr(backend, name, _after_a_check(backend.app, getattr(backend, name)))


def _after_a_check(app: Any, wait: Any) -> Any:
    @functools.wraps(wait)
    def call(result: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_to_wait(app, result)
        return wait(result, *args, **kwargs)

    return call


def _unless_captured(backend: Any) -> Any:
    """The backend's own `on_task_call`, skipped for a message that is only captured.

    The rpc backend would declare its reply queue; the relay does that, before it publishes. Not at
    the broker of a destination, where the queue would only fill: nobody here consumes from it.
    """
    original = backend.on_task_call

    @functools.wraps(original)
    def on_task_call(producer: Any, task_id: str) -> Any:
        if not isinstance(producer, CapturingProducer):
            return original(producer, task_id)
        if hasattr(backend, "binding") and producer.is_own and not task_join_will_block():
            producer.maybe_declare(backend.binding)
        return None

    return on_task_call


def _subscribe_late(consumer: Any) -> None:
    """Collect the ids of results, and subscribe to them when a result is waited for."""
    subscribe, cancel = consumer.consume_from, consumer.cancel_for
    wait_for_pending = consumer.on_wait_for_pending
    unsubscribed: dict[str, bool] = {}

    def consume_from(task_id: str) -> None:
        unsubscribed[task_id] = True

    def cancel_for(task_id: str) -> None:
        if not unsubscribed.pop(task_id, False):
            cancel(task_id)

    def on_wait_for_pending(*args: Any, **kwargs: Any) -> Any:
        for task_id in tuple(unsubscribed):
            if unsubscribed.pop(task_id, False):  # False: another thread took it
                try:
                    subscribe(task_id)
                except BaseException:
                    unsubscribed[task_id] = True
                    raise
        return wait_for_pending(*args, **kwargs)

    consumer.consume_from, consumer.cancel_for = consume_from, cancel_for
    consumer.on_wait_for_pending = on_wait_for_pending
