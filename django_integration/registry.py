"""Retries and replacements go directly to the broker, whatever base class a task has.

`self.retry()` and `self.replace()` send and then raise. Inside `atomic()` the exception rolls the
transaction back, and a row with it: the task would be lost without a trace. So the registry,
through which every task of an app passes, makes these two methods publish at once.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from celery.app.registry import TaskRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_directly: ContextVar[bool] = ContextVar("directly", default=False)


class OutboxTaskRegistry(TaskRegistry):  # type: ignore[misc]
    """Celery's registry, with `retry` and `replace` of each task outside of the outbox."""

    def __setitem__(self, name: str, task: Any) -> None:
        for method in ("retry", "replace"):
            if method not in vars(task):
                setattr(task, method, _sending_directly(task, getattr(task, method)))
        super().__setitem__(name, task)


def adopt(registry: TaskRegistry) -> None:
    """Give a registry of whatever class this behaviour, and the tasks that it already has.

    Another extension of Celery may bring a registry class of its own, and an app may be given its
    tasks: neither passes through `OutboxTaskRegistry` by itself.
    """
    if not isinstance(registry, OutboxTaskRegistry):
        other = type(registry)
        registry.__class__ = type(other.__name__, (OutboxTaskRegistry, other), {})
    for name, task in list(registry.items()):
        registry[name] = task


@contextmanager
def set_directly(*, value: bool) -> Iterator[None]:
    """Whether the sends of this block bypass the outbox."""
    token = _directly.set(value)
    try:
        yield
    finally:
        _directly.reset(token)


def is_direct() -> bool:
    """Whether a send right now belongs to a retry or replacement."""
    return _directly.get()


def _sending_directly(task: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        # An eager retry runs the task right here, and the calls of that run belong into the outbox.
        with set_directly(value=not task.request.is_eager):
            return method(*args, **kwargs)

    return call
