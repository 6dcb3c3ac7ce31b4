"""What every task gets, whatever its base class: direct retries, async calls, safe `on_commit`.

`self.retry()` and `self.replace()` send and then raise. Inside `atomic()` the exception rolls the
transaction back, and the row with it: the retry would be lost silently. So the registry,
through which every task of an app passes, makes these two methods publish directly. It also adds
`adelay()` and `aapply_async()`, for callers that must not block their event loop. Celery's
`delay_on_commit()` would call the task after the commit, where a crash loses the call: here the row
is stored at once, in the transaction.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from celery import Task

from django_integration.upstream.celery import TaskRegistry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

bypasses_outbox: ContextVar[bool] = ContextVar("bypasses_outbox", default=False)
"""Whether the current send is a retry or replacement, which goes to the broker directly."""


class OutboxTaskRegistry(TaskRegistry):  # type: ignore[misc]
    """Celery's registry, which adds these methods to every task that is registered."""

    def __setitem__(self, name: str, task: Any) -> None:
        if isinstance(task, Task):
            for method in ("retry", "replace"):
                if method not in vars(task):
                    setattr(task, method, _sending_directly(task, method))
            for method in ("delay", "apply_async"):
                if not hasattr(task, f"a{method}"):
                    setattr(task, f"a{method}", _for_async_code(task, method))
                on_commit = f"{method}_on_commit"
                if hasattr(task, on_commit) and on_commit not in vars(task):
                    setattr(task, on_commit, _stored_in_transaction(task, method))
        super().__setitem__(name, task)


def extend_registry(registry: TaskRegistry) -> None:
    """Make any registry an `OutboxTaskRegistry`, and extend the tasks that it already has.

    Another extension of Celery may bring its own registry class, and an app may be created with
    tasks.
    """
    if not isinstance(registry, OutboxTaskRegistry):
        other = type(registry)
        registry.__class__ = type(other.__name__, (OutboxTaskRegistry, other), {})
    for name, task in list(registry.items()):
        registry[name] = task


@contextmanager
def bypassing_outbox(*, bypass: bool) -> Iterator[None]:
    """Set `bypasses_outbox` for a block."""
    token = bypasses_outbox.set(bypass)
    try:
        yield
    finally:
        bypasses_outbox.reset(token)


def _sending_directly(task: Any, name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(task, name))
    def call(*args: Any, **kwargs: Any) -> Any:
        # An eager retry runs the task in this call, and the task's own calls use the outbox.
        with bypassing_outbox(bypass=not task.request.is_eager):
            return _from_class(task, name)(*args, **kwargs)

    return call


def _from_class(task: Any, name: str) -> Any:
    """The task's method as its class has it now: tests may have replaced it there."""
    found = inspect.getattr_static(type(task), name)
    return found.__get__(task, type(task)) if hasattr(type(found), "__get__") else found


def _stored_in_transaction(task: Any, name: str) -> Callable[..., Any]:
    """`delay_on_commit()` and `apply_async_on_commit()`: return the result, as `name` does.

    Celery's own is used for tasks that are not stored: it must not run or send them before the
    commit.
    """
    on_commit = f"{name}_on_commit"

    @functools.wraps(getattr(task, on_commit))
    def call(*args: Any, **kwargs: Any) -> Any:
        app = task.app
        if app.conf.task_always_eager or app.outbox.settings.excludes(task.name):
            return _from_class(task, on_commit)(*args, **kwargs)
        return getattr(task, name)(*args, **kwargs)

    return call


def _for_async_code(task: Any, name: str) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(getattr(task, name))
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await sync_to_async(getattr(task, name))(*args, **kwargs)

    call.__name__ = f"a{name}"
    return call
