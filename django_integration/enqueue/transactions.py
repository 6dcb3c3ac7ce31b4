"""Where in its transactions a connection is, as far as Django tells, and from there the call stack.

Django counts its atomic blocks. It does not say that it is running on_commit hooks, nor whether a
savepoint is one of its own: for both, the frames that are running are the only exact answer.
"""

from __future__ import annotations

import inspect
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic

_RUN_HOOKS = BaseDatabaseWrapper.run_and_clear_commit_hooks.__code__
_ATOMIC = {Atomic.__enter__.__code__, Atomic.__exit__.__code__}


def is_open(connection: BaseDatabaseWrapper) -> bool:
    """Whether a row that is written now would be part of a transaction of the caller's."""
    return connection.in_atomic_block or not connection.get_autocommit()


def level(connection: BaseDatabaseWrapper, hooks: int | None = None) -> int | None:
    """How many atomic blocks deep. Outside of them 0, or below with each run of on_commit hooks.

    None if the caller ends transactions with `commit()` and `rollback()`: any time can be the end.
    `hooks` is what `running_hooks()` says, where that is known.
    """
    if connection.in_atomic_block:
        return len(connection.savepoint_ids) + 1
    unconnected = connection.connection is None
    autocommit = connection.settings_dict["AUTOCOMMIT"] if unconnected else connection.autocommit
    if not autocommit:
        return None
    return -(running_hooks() if hooks is None else hooks)


def running_hooks() -> int:
    """How many runs of on_commit hooks this code is called from. Their data is committed."""
    count, frame = 0, inspect.currentframe()
    while frame is not None:
        count += frame.f_code is _RUN_HOOKS
        frame = frame.f_back
    return count


def savepoint_by_hand(sql: Any) -> str | None:
    """'SAVEPOINT' or 'ROLLBACK' if the caller makes one or rolls back to one; atomic blocks don't
    count.
    """
    word = sql.lstrip()[:9].upper() if isinstance(sql, str) else ""
    if word not in {"SAVEPOINT", "ROLLBACK "} or _is_atomics_own():
        return None
    return word.rstrip()


def _is_atomics_own() -> bool:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code not in _ATOMIC and frame.f_code is not _RUN_HOOKS:
        frame = frame.f_back
    return frame is not None and frame.f_code in _ATOMIC
