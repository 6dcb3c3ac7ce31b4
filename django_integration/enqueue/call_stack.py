"""Facts that can be read only from the call stack. Nothing here knows rows or bulks.

Django does not record that it is running on_commit hooks, nor whether a savepoint is its own.
Python does not record whether a `with` block is in a function that can be suspended. The results
decide in `transactions.py`, `bulk.py` and `enqueuer.py` whether a call may wait.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

from django_integration.upstream.django import (
    ATOMIC,
    RUN_COMMIT_HOOKS,
    code_that_runs_hooks,
    decorated_by_atomic,
)

if TYPE_CHECKING:
    from types import FrameType

_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_LIBRARIES = sys.stdlib_module_names | {
    "asgiref", "celery", "celery_outbox_steps", "django", "django_integration", "gunicorn",
    "kombu", "rest_framework", "sentry_sdk", "uvicorn", "whitenoise",
}  # fmt: skip
"""Packages whose frames are not the caller's code."""
_ENTERING = {"__enter__", "__aenter__", "enter_context", "enter_async_context"}


def running_hooks() -> int:
    """How many runs of on_commit hooks this code is called from. Their data is committed."""
    count = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        count += frame.f_code is RUN_COMMIT_HOOKS
        frame = frame.f_back
    return count


def is_in_hook() -> bool:
    """Whether an on_commit hook makes the current call, also one that a `TestCase` runs."""
    runs_hooks = code_that_runs_hooks()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in runs_hooks:
            return True
        frame = frame.f_back
    return False


def place_in_hook() -> str:
    """Where an on_commit hook makes the current call: "at", and file and line.

    If the hook is the call itself, as in `on_commit(task.delay)`, it can be found only by the
    transaction that was committed: "of the transaction at", or "in" a function or view.
    """
    where, runs_hooks = "at", code_that_runs_hooks()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in runs_hooks:
            where = "of the transaction at"
        elif not _is_library(frame.f_globals.get("__name__")):
            return f"{where} {frame.f_code.co_filename}:{frame.f_lineno}"
        elif (function := decorated_by_atomic(frame)) is not None:
            return f"of the transaction in {_name_of(function)}"
        frame = frame.f_back
    return "that is the call itself"


def _is_library(module: object) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES


def _name_of(function: Any) -> str:
    """File and line of a function; for a class-based view, its name."""
    view = getattr(function, "view_class", None)
    if view is not None:
        return f"{view.__module__}.{view.__qualname__}"
    code = getattr(inspect.unwrap(function), "__code__", None)
    return repr(function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def is_called_by_atomic() -> bool:
    """Whether `atomic()` itself executes the statement, and not the code of its block or a hook."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not RUN_COMMIT_HOOKS:
        if frame.f_code in ATOMIC:
            return True
        frame = frame.f_back
    return False


def block_may_be_suspended() -> bool:
    """Whether the `with` statement that is being entered is in a generator or coroutine.

    Other code, with its own transactions, runs while that is suspended in the middle of the block,
    and it may never be resumed. Celery's own generators (of groups) run to their end at once.
    """
    frame = _frame_of_with(sys._getframe(1))
    return (
        frame is not None
        and bool(frame.f_code.co_flags & _SUSPENDABLE)
        and frame.f_globals.get("__name__") != "celery.canvas"
    )


def _frame_of_with(frame: FrameType | None) -> FrameType | None:
    """The function that the `with` statement is written in, seen from the context manager.

    Between the two are `__enter__` methods and, for `@contextmanager`, generators that these run.
    """
    while frame is not None:
        caller = frame.f_back
        enters = frame.f_code.co_name in _ENTERING
        is_entered = caller is not None and caller.f_code.co_name in _ENTERING
        if not enters and not (is_entered and frame.f_code.co_flags & _SUSPENDABLE):
            return frame
        frame = caller
    return None
