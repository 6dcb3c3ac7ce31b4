"""Django: the transaction of a connection, faster settings, the admin's pages, a query's SQL.

Reads Django's state; only `watch_statements()` and `new_connection()` change any. Used by
`enqueue/`, `store/`, `celery_hooks/` and `admin/`.
"""

from __future__ import annotations

import inspect
import sys
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from django.conf import Settings
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic

from django_integration.upstream.celery import DictAttribute

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from django.contrib.admin import AdminSite, ModelAdmin
    from django.db.models import QuerySet

# -- transactions --------------------------------------------------------------------------------

RUN_COMMIT_HOOKS: CodeType = BaseDatabaseWrapper.run_and_clear_commit_hooks.__code__
"""On the call stack while on_commit hooks run; Django keeps no record of that."""
ATOMIC: tuple[CodeType, ...] = (Atomic.__enter__.__code__, Atomic.__exit__.__code__)
"""One is on the call stack while `atomic()` creates, releases or rolls back to its savepoint."""

atomic_blocks: Callable[[BaseDatabaseWrapper], list[Any]] = attrgetter("atomic_blocks")
"""The atomic blocks that a connection is in, the outermost first."""
is_of_testcase: Callable[[Any], bool] = attrgetter("_from_testcase")
"""Whether an atomic block is one that a Django `TestCase` has put around its tests. Like the other
one no function of ours, because every call asks."""


def decorated_by_atomic(frame: FrameType) -> Any:
    """The function whose transaction a frame of the decorator `@atomic` ends; None if it is none.

    Django's `ATOMIC_REQUESTS` decorates the view. The function itself has returned by then.
    """
    seen = frame.f_locals
    is_decorator = frame.f_code.co_name == "inner" and isinstance(seen.get("self"), Atomic)
    return seen.get("func") if is_decorator else None


def atomic_depth(connection: BaseDatabaseWrapper) -> int:
    """How many atomic blocks the connection is in: the outermost has no savepoint."""
    return len(connection.savepoint_ids) + 1 if connection.in_atomic_block else 0


def last_commit_hook(connection: BaseDatabaseWrapper) -> Any:
    """The newest on_commit hook, if it belongs to the current atomic block; None otherwise."""
    if not connection.run_on_commit:
        return None
    savepoints, hook, *_ = connection.run_on_commit[-1]
    return hook if savepoints == set(connection.savepoint_ids) else None


def commit_hooks(connection: BaseDatabaseWrapper) -> list[Any]:
    """The on_commit hooks of the open transaction; those of blocks that ended in a rollback are
    gone."""
    return [hook for _, hook, *_ in connection.run_on_commit]


def will_roll_back(connection: BaseDatabaseWrapper) -> bool:
    """Whether the atomic block is broken: Django allows no statement until it is rolled back."""
    return connection.in_atomic_block and connection.needs_rollback


def is_in_testcase(connection: BaseDatabaseWrapper) -> bool:
    """Whether a Django `TestCase` is running in a transaction of this connection."""
    return any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def code_that_runs_hooks() -> tuple[CodeType, ...]:
    """One is on the call stack while on_commit hooks run, those that a `TestCase` has captured
    included."""
    tests = sys.modules.get("django.test.testcases")
    if tests is None:  # never imported here: it is large
        return (RUN_COMMIT_HOOKS,)
    capture = inspect.unwrap(tests.TestCase.captureOnCommitCallbacks)
    return RUN_COMMIT_HOOKS, capture.__code__


# -- connections ---------------------------------------------------------------------------------


def watch_statements(connection: BaseDatabaseWrapper, wrapper: Callable[..., Any]) -> None:
    """Like `connection.execute_wrapper()`, but not bound to a `with` block, and in front.

    In front, because that context manager removes the last wrapper, even if it is not its own.
    """
    connection.execute_wrappers.insert(0, wrapper)


def unwatch_statements(connection: BaseDatabaseWrapper, wrapper: Callable[..., Any]) -> None:
    """Undo `watch_statements()`."""
    connection.execute_wrappers.remove(wrapper)


def new_connection(alias: str, settings: dict[str, Any], like: Any) -> BaseDatabaseWrapper:
    """A connection that is not among `django.db.connections`."""
    wrapper: BaseDatabaseWrapper = type(like)(settings, alias)
    # Opened in the relay's thread, and perhaps closed in another; the two never use it at once.
    wrapper.inc_thread_sharing()
    # With DEBUG on, Django keeps executed statements in memory. The relay's are large.
    wrapper.queries_log = deque(maxlen=1)
    return wrapper


# -- settings ------------------------------------------------------------------------------------


class FastDjangoSettings(DictAttribute):  # type: ignore[misc]
    """Django's settings as Celery reads them, with a fast answer for a name that is not set.

    Unset names are Django's slowest lookups. Nothing is cached, so `override_settings` works.
    """

    def __contains__(self, name: str) -> bool:
        holder = self.obj._wrapped
        if type(holder) is Settings:
            return name in vars(holder)
        return hasattr(self.obj, name)


# -- the admin -----------------------------------------------------------------------------------


def admin_of(site: AdminSite, model: type[Any]) -> ModelAdmin[Any] | None:
    """The `ModelAdmin` of a model. The public `get_model_admin()` exists from Django 5 on."""
    return site._registry.get(model)


def where_clause_of(rows: QuerySet[Any]) -> tuple[str, tuple[Any, ...]]:
    """The condition of a query as SQL, and its parameters."""
    query = cast("Any", rows.query)
    sql, params = query.get_compiler(rows.db).compile(query.where)
    return sql, tuple(params)


def statement_of(rows: QuerySet[Any]) -> tuple[str, tuple[Any, ...]]:
    """A query as SQL, and its parameters: `str(rows.query)` would put them into the text."""
    sql, params = rows.query.get_compiler(rows.db).as_sql()
    return sql, tuple(params)
