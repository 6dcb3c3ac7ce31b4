"""The transaction level of a connection, which decides which calls may wait in a bulk.

Reads Django's state and the call stack, and changes neither. `bulk.py` and `enqueuer.py` call it;
`call_stack.py` finds what Django does not record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from django_integration.enqueue.call_stack import is_called_by_atomic, running_hooks
from django_integration.upstream.django import atomic_depth

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


def is_command_line_call() -> bool:
    """Whether `celery call` makes the call: there is no transaction that it could be part of."""
    context = click.get_current_context(silent=True)
    return context is not None and context.info_name == "call"


def level(connection: BaseDatabaseWrapper, hooks: int | None = None) -> int | None:
    """The number of atomic blocks around a call. Two calls of one level commit together.

    Outside atomic blocks it is 0, minus one for each run of on_commit hooks that the call comes
    from. None if the caller ends transactions with `commit()` and `rollback()`, which may happen
    at any time. `hooks` is the result of `running_hooks()`, if the caller has it already.
    """
    depth = atomic_depth(connection)
    if depth:
        return depth
    unconnected = connection.connection is None
    autocommit = connection.settings_dict["AUTOCOMMIT"] if unconnected else connection.autocommit
    if not autocommit:
        return None
    return -(running_hooks() if hooks is None else hooks)


def savepoint_by_hand(sql: Any) -> str | None:
    """'SAVEPOINT' or 'ROLLBACK' if the statement is one, and not from `atomic()` itself."""
    word = sql.lstrip()[:9].upper() if isinstance(sql, str) else ""
    if word not in {"SAVEPOINT", "ROLLBACK "} or is_called_by_atomic():
        return None
    return word.rstrip()
