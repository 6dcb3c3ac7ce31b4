"""What a project has to set up first, and the one line that says what is missing.

Django, the entry in INSTALLED_APPS, the migrations. The worker, the commands, the system checks and
the caller of a task all take their words from here. Nothing here changes a database.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING

from django.apps import apps
from django.db import Error, ProgrammingError

from celery_outbox_steps.errors import ConfigurationError, StoreNotReady
from django_integration.conf import NOT_INSTALLED, is_installed
from django_integration.schema import APP_LABEL, MESSAGE_COLUMNS, OUTBOX, TABLES
from django_integration.store.session import own_wrapper

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

NO_DJANGO = (
    "Django is not set up. Name the Celery app of your project, as in `celery -A proj outbox "
    "status`; its module must set DJANGO_SETTINGS_MODULE before it creates the app."
)
INSTALL = f"{NOT_INSTALLED}: add it, and run: python manage.py migrate"
MYSQL_NO_COLUMN = 1054
SQLITE_MISSES = ("no such table", "no such column", "has no column named")


def refuse_without_django() -> None:
    """Raise a `ConfigurationError` where the tables can't be used yet."""
    if not apps.ready:
        raise ConfigurationError(NO_DJANGO)
    if not is_installed():
        raise ConfigurationError(INSTALL)


def missing_migrations(wrapper: BaseDatabaseWrapper) -> str:
    """What the migrations have not made yet, and what to do about it; empty if they have run."""
    missing = _missing_parts(wrapper)
    if missing and not is_installed():
        return INSTALL
    migrate = f"python manage.py migrate --database={wrapper.alias} {APP_LABEL}"
    return f"no {missing}; run: {migrate}" if missing else ""


def others_table(wrapper: BaseDatabaseWrapper) -> bool:
    """Whether a table of this name exists that no migration of ours has made: it would fail."""
    with wrapper.cursor() as cursor:
        if OUTBOX not in wrapper.introspection.table_names(cursor):
            return False
        described = wrapper.introspection.get_table_description(cursor, OUTBOX)
    return "due_at" not in {column.name for column in described}


def refuse_without_tables(connection: BaseDatabaseWrapper, error: Error) -> None:
    """Raise an error that names the command, if a statement failed for want of a migration."""
    if not _may_lack_tables(error):
        return
    problem = ""
    with suppress(Error):  # then the caller raises the first one
        problem = _problem(connection)
    if problem:
        raise StoreNotReady(f"database {connection.alias!r}: {problem}") from error


def _may_lack_tables(error: Error) -> bool:
    if isinstance(error, ProgrammingError) or error.args[:1] == (MYSQL_NO_COLUMN,):
        return True
    return any(words in str(error) for words in SQLITE_MISSES)


def _problem(connection: BaseDatabaseWrapper) -> str:
    try:
        return missing_migrations(connection)
    except Error:  # the failed statement has aborted the transaction: only another one can look
        with closing(own_wrapper(connection.alias, {})) as own:
            return missing_migrations(own)


def _missing_parts(wrapper: BaseDatabaseWrapper) -> str:
    """The tables or columns that the migrations have not made yet."""
    with wrapper.cursor() as cursor:
        tables = set(TABLES) - set(wrapper.introspection.table_names(cursor))
        if tables:
            return f"table {', '.join(sorted(tables))}"
        described = wrapper.introspection.get_table_description(cursor, OUTBOX)
    columns = {*MESSAGE_COLUMNS, "outbox_key", "paced"} - {column.name for column in described}
    return f"column {', '.join(sorted(columns))}" if columns else ""
