"""Retries and replacements go directly to the broker, whatever base class a task has.

`self.retry()` and `self.replace()` send and then raise. Inside `atomic()` the exception rolls the
transaction back, and a row with it: the task would be lost without a trace. So the registry, through
which every task of an app passes, makes these two methods publish at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from celery.app.registry import TaskRegistry

publishing_directly: ContextVar[bool] = ContextVar("publishing_directly", default=False)


class OutboxTaskRegistry(TaskRegistry):  # type: ignore[misc]
    """Celery's registry, with `retry` and `replace` of each task outside of the outbox."""

    def __setitem__(self, name: str, task: Any) -> None:
        for method in ("retry", "replace"):
            if method not in vars(task):
                setattr(task, method, _directly(getattr(task, method)))
        super().__setitem__(name, task)


def _directly(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        token = publishing_directly.set(True)
        try:
            return method(*args, **kwargs)
        finally:
            publishing_directly.reset(token)

    return call
