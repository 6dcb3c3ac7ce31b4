"""What every task of an app gets, whatever base class it has: direct retries, and async calls.

`self.retry()` and `self.replace()` send and then raise. Inside `atomic()` the exception rolls the
transaction back, and a row with it: the task would be lost without a trace. So the registry,
through which every task of an app passes, makes these two methods publish at once. It also adds
`adelay()` and `aapply_async()`, for callers that must not block their event loop.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from celery import Task
from celery.app.registry import TaskRegistry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

_directly: ContextVar[bool] = ContextVar("directly", default=False)


class OutboxTaskRegistry(TaskRegistry):  # type: ignore[misc]
    """Celery's registry, which prepares the tasks that it is given."""

    def __setitem__(self, name: str, task: Any) -> None:
        if isinstance(task, Task):
            for method in ("retry", "replace"):
                if method not in vars(task):
                    setattr(task, method, _sending_directly(task, method))
            for method in ("delay", "apply_async"):
                if not hasattr(task, f"a{method}"):
                    setattr(task, f"a{method}", _for_async_code(task, method))
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


def _sending_directly(task: Any, name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(task, name))
    def call(*args: Any, **kwargs: Any) -> Any:
        # An eager retry runs the task right here, and the calls of that run belong into the outbox.
        with set_directly(value=not task.request.is_eager):
            return _from_class(task, name)(*args, **kwargs)

    return call


def _from_class(task: Any, name: str) -> Any:
    """The task's method as its class has it now: tests replace it there."""
    found = inspect.getattr_static(type(task), name)
    return found.__get__(task, type(task)) if hasattr(type(found), "__get__") else found


def _for_async_code(task: Any, name: str) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(getattr(task, name))
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await sync_to_async(getattr(task, name))(*args, **kwargs)

    call.__name__ = f"a{name}"
    return call
