"""Django: the transaction of a connection, settings without a search, the admin's pages, SQL."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, cast

from django.conf import Settings
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic

from django_integration.upstream.celery import DictAttribute

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from django.contrib.admin import AdminSite, ModelAdmin
    from django.db.models import QuerySet

# -- transactions --------------------------------------------------------------------------------

RUN_COMMIT_HOOKS: CodeType = BaseDatabaseWrapper.run_and_clear_commit_hooks.__code__
"""Is running while on_commit hooks run, of which Django keeps no record."""
ATOMIC: tuple[CodeType, ...] = (Atomic.__enter__.__code__, Atomic.__exit__.__code__)
"""One of them is running while `atomic()` makes, releases or rolls back to its savepoint."""


def atomic_depth(connection: BaseDatabaseWrapper) -> int:
    """How many atomic blocks the connection is in: the outermost has no savepoint."""
    return len(connection.savepoint_ids) + 1 if connection.in_atomic_block else 0


def last_commit_hook(connection: BaseDatabaseWrapper) -> Any:
    """The newest on_commit hook, if it belongs to the current atomic block; None otherwise."""
    if not connection.run_on_commit:
        return None
    savepoints, hook, *_ = connection.run_on_commit[-1]
    return hook if savepoints == set(connection.savepoint_ids) else None


def will_roll_back(connection: BaseDatabaseWrapper) -> bool:
    """Whether the atomic block is broken: Django rolls it back and allows no statement before."""
    return connection.in_atomic_block and connection.needs_rollback


def is_in_testcase(connection: BaseDatabaseWrapper) -> bool:
    """Whether a Django `TestCase` is running in a transaction of this connection."""
    return any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


# -- connections ---------------------------------------------------------------------------------


def watch_statements(connection: BaseDatabaseWrapper, wrapper: Callable[..., Any]) -> None:
    """Like `connection.execute_wrapper()`, but not bound to a `with` block, and in front.

    In front, because that context manager removes the last wrapper, whichever it is.
    """
    connection.execute_wrappers.insert(0, wrapper)


def unwatch_statements(connection: BaseDatabaseWrapper, wrapper: Callable[..., Any]) -> None:
    """The end of `watch_statements`."""
    connection.execute_wrappers.remove(wrapper)


def new_connection(alias: str, settings: dict[str, Any], like: Any) -> BaseDatabaseWrapper:
    """A connection that is not among `django.db.connections`."""
    wrapper: BaseDatabaseWrapper = type(like)(settings, alias)
    # Opened in the relay's thread, closed perhaps in another one: one at a time, never both.
    wrapper.inc_thread_sharing()
    # With DEBUG on, Django remembers statements. The relay's are large.
    wrapper.queries_log = deque(maxlen=1)
    return wrapper


# -- settings ------------------------------------------------------------------------------------


class FastDjangoSettings(DictAttribute):  # type: ignore[misc]
    """Django's settings as Celery reads them, with a fast answer for a name that is not set.

    Such names take Django longest. Nothing is cached, so that `override_settings` works.
    """

    def __contains__(self, name: str) -> bool:
        holder = self.obj._wrapped
        if type(holder) is Settings:
            return name in vars(holder)
        return hasattr(self.obj, name)


# -- the admin -----------------------------------------------------------------------------------


def admin_of(site: AdminSite, model: type[Any]) -> ModelAdmin[Any] | None:
    """The page of a model. `is_registered()` gives none, and `get_model_admin()` is of Django 5."""
    return site._registry.get(model)


def where_clause_of(rows: QuerySet[Any]) -> tuple[str, tuple[Any, ...]]:
    """The condition of a query as SQL, and its parameters."""
    query = cast("Any", rows.query)
    sql, params = query.get_compiler(rows.db).compile(query.where)
    return sql, tuple(params)


def statement_of(rows: QuerySet[Any]) -> tuple[str, tuple[Any, ...]]:
    """A query as SQL, and its parameters: `str(rows.query)` would have them in the text."""
    sql, params = rows.query.get_compiler(rows.db).as_sql()
    return sql, tuple(params)
