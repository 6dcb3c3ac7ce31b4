"""The relay's own database session: opened on demand, closed after any error.

Never one of Django's `connections`: those belong to threads and requests, may sit in a pool that a
forked child closes, and may hold a transaction. A database error becomes a `StoreError`, and the
next statement opens a new session. Nothing here knows the outbox; see `base.py`.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from threading import RLock
from typing import TYPE_CHECKING, Any

from django.db import connections, router, transaction
from django.db.utils import Error, IntegrityError, OperationalError

from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.settings import read
from django_integration.upstream.django import new_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

# mysqlclient ends the session whenever its connection object is deallocated, even in a forked
# child, where the session is the parent's. This reference stops the child from doing that.
_kept_alive: dict[int, Any] = {}

MYSQL_DEADLOCK = 1213

# Options that make no sense for a relay: a pool is shared with forks, and the claim is written
# for READ COMMITTED and for parameters that the client binds.
UNWANTED_OPTIONS = frozenset({"pool", "isolation_level", "server_side_binding"})


class Session:
    """One connection, used by one thread. A given `connection` is only borrowed: never closed."""

    def __init__(
        self,
        alias: str,
        on_open: Callable[[Session], None],
        *,
        connection: BaseDatabaseWrapper | None = None,
        begin: str = "BEGIN",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.alias = alias
        self.borrowed = connection is not None
        self._on_open = on_open
        self._wrapper = connection
        self._begin = begin
        self._options = options or {}
        self._pid = os.getpid()
        self.opened = 0
        """How often a connection was opened."""

    @property
    def is_open(self) -> bool:
        return (
            self._wrapper is not None
            and self._wrapper.connection is not None
            and self._pid == os.getpid()
        )

    @property
    def wrapper(self) -> BaseDatabaseWrapper:
        """Django's wrapper, connected or not."""
        if self._pid != os.getpid():
            self._forget_parent()
        if self._wrapper is None:
            self._wrapper = own_wrapper(self.alias, self._options)
        return self._wrapper

    @property
    def raw(self) -> Any:
        """The driver's connection; None while closed."""
        return None if self._wrapper is None else self._wrapper.connection

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Execute one statement and return how many rows it changed."""
        with self.errors(), self.open().cursor() as cursor:
            cursor.execute(sql, params)
            return int(cursor.rowcount)

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Execute one statement and return its rows."""
        with self.errors(), self.open().cursor() as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall())

    def try_run(self, sql: str, params: Sequence[Any] = ()) -> int | None:
        """As `run()`; None if another session was faster, and the connection stays open.

        A unique column refused the statement, or it was the victim of a deadlock. It changed
        nothing.
        """
        with self.errors():
            wrapper = self.open()
            try:
                with self._savepoint(), wrapper.cursor() as cursor:
                    cursor.execute(sql, params)
                    return int(cursor.rowcount)
            except (IntegrityError, OperationalError) as error:
                if isinstance(error, OperationalError) and error.args[:1] != (MYSQL_DEADLOCK,):
                    raise
                return None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing. In the transaction of a borrowed connection, a savepoint."""
        if self.borrowed:
            with self.errors(), transaction.atomic(using=self.wrapper.alias):
                yield
            return
        self.run(self._begin)
        try:
            yield
        except BaseException:
            self.close()  # which rolls back
            raise
        self.run("COMMIT")

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Any error closes the connection; a database error becomes a `StoreError`."""
        try:
            yield
        except (Error, OSError) as error:
            self.close()
            raise StoreError(f"database {self.alias!r}: {_first_line(error)}") from error
        except BaseException:
            # After an interrupted statement the state of the connection is unknown.
            self.close()
            raise

    def open(self) -> BaseDatabaseWrapper:
        """The wrapper, connected."""
        wrapper = self._wrapper
        if wrapper is None or self._pid != os.getpid():
            wrapper = self.wrapper
        if wrapper.connection is None:
            wrapper.ensure_connection()
            if not self.borrowed:
                _kept_alive[id(wrapper.connection)] = wrapper.connection
            self.opened += 1
            self._on_open(self)
        return wrapper

    def close(self) -> None:
        """Close what we opened. A forked child only forgets its parent's session."""
        if self.borrowed or self._wrapper is None:
            return
        if self._pid != os.getpid():
            self._forget_parent()
            return
        wrapper, self._wrapper = self._wrapper, None
        raw = wrapper.connection
        with suppress(Exception):
            wrapper.close()
        _kept_alive.pop(id(raw), None)

    def _savepoint(self) -> AbstractContextManager[None]:
        """What undoes a failed statement: autocommit, or in a borrowed transaction a savepoint."""
        return transaction.atomic(using=self.wrapper.alias) if self.borrowed else nullcontext()

    def _forget_parent(self) -> None:
        self._pid = os.getpid()
        if not self.borrowed:
            self._wrapper = None


class SharedSession(Session):
    """A session that several threads use, one statement or transaction at a time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lock = RLock()

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        with self.lock:
            return super().run(sql, params)

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.lock:
            return super().rows(sql, params)

    def try_run(self, sql: str, params: Sequence[Any] = ()) -> int | None:
        with self.lock:
            return super().try_run(sql, params)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.lock, super().transaction():
            yield

    def open(self) -> BaseDatabaseWrapper:
        with self.lock:
            return super().open()

    def close(self) -> None:
        with self.lock:
            super().close()


def is_open(connection: BaseDatabaseWrapper) -> bool:
    """Whether a row that is written now would be part of the caller's transaction."""
    return connection.in_atomic_block or not connection.get_autocommit()


def write_alias() -> str:
    """The database that the router names for writing the outbox."""
    # Imported here: models need a configured Django, and importing this module must not.
    from django_integration.models import CeleryOutbox

    return router.db_for_write(CeleryOutbox)


def outbox_aliases(conf: Any) -> list[str]:
    """The databases that hold an outbox: `outbox_databases`, or the one that the router names."""
    aliases = read(conf, "databases")
    return [write_alias()] if aliases is None else list(aliases)


def own_wrapper(alias: str, options: Mapping[str, Any]) -> BaseDatabaseWrapper:
    """A connection with the settings of this alias, which is not shared."""
    shared = connections[alias]
    wanted = {
        name: value
        for name, value in shared.settings_dict["OPTIONS"].items()
        if name not in UNWANTED_OPTIONS
    }
    settings = {
        **shared.settings_dict,
        "OPTIONS": {**options, **wanted},
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": False,
        "AUTOCOMMIT": True,
        "ATOMIC_REQUESTS": False,
    }
    return new_connection(alias, settings, like=shared)


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
