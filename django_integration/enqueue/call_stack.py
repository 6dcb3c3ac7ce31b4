"""Facts that can be read only from the call stack. Nothing here knows rows or bulks.

Django does not record that it is running on_commit hooks, nor whether a savepoint is its own.
Python does not record whether a `with` block is in a function that can be suspended. The results
decide in `transactions.py`, `bulk.py` and `enqueuer.py` whether a call may wait.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING

from django_integration.upstream.django import ATOMIC, RUN_COMMIT_HOOKS

if TYPE_CHECKING:
    from types import FrameType

_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_ENTERING = {"__enter__", "__aenter__", "enter_context", "enter_async_context"}


def running_hooks() -> int:
    """How many runs of on_commit hooks this code is called from. Their data is committed."""
    count = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        count += frame.f_code is RUN_COMMIT_HOOKS
        frame = frame.f_back
    return count


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
