"""Real databases for tests: created and migrated on first use, dropped at the end.

`Databases.get("postgresql")` returns the Django settings of a fresh database; `installed()` puts
them under an alias for a block. Tests really commit: nothing is wrapped in a transaction.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from django.core.management import call_command
from django.db import connections
from django.db.utils import ConnectionHandler

from tests.harness.settings import database_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Service


class Databases:
    """The databases of one test session, by vendor (and by name, where two are needed)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._settings: dict[tuple[str, str], dict[str, Any]] = {}
        self._private: set[tuple[str, str]] = set()

    def get(
        self,
        vendor: str,
        name: str = "outbox",
        *,
        service: Service | None = None,
        migrated: bool = True,
    ) -> dict[str, Any]:
        """The settings of a migrated database; always the same one for the same arguments.

        On a private server (`service`) it is not dropped: the server's data is deleted as a whole.
        """
        if (vendor, name) not in self._settings:
            self._settings[vendor, name] = self._create(vendor, name, service, migrated=migrated)
            if service and service.pids:
                self._private.add((vendor, name))
        return self._settings[vendor, name]

    def drop_all(self) -> None:
        for key, settings in self._settings.items():
            if key in self._private or "sqlite" in settings["ENGINE"]:
                continue  # a file in pytest's own temporary directory
            with installed("dropping", settings):
                _end_sessions(connections["dropping"], settings["NAME"])
                connections["dropping"].creation.destroy_test_db(settings["NAME"], verbosity=0)

    def _create(
        self, vendor: str, name: str, service: Service | None, *, migrated: bool
    ) -> dict[str, Any]:
        settings = complete(database_settings(vendor, "test", service))
        unique = f"{name}_{uuid4().hex[:8]}"
        if vendor == "sqlite":
            unique = str(self._directory / f"{unique}.sqlite3")
        settings["TEST"]["NAME"] = unique
        with installed("creating", settings):
            connections["creating"].creation._create_test_db(verbosity=0, autoclobber=True)
        made = {**settings, "NAME": unique}
        if migrated:
            with installed("creating", made):
                call_command("migrate", database="creating", verbosity=0)
        return made


def _end_sessions(connection: Any, name: str) -> None:
    """PostgreSQL refuses to drop a database in use, and a failed test may have left threads."""
    if connection.vendor == "postgresql":
        with connection._nodb_cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )


def complete(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with Django's defaults filled in."""
    filled: dict[str, Any] = ConnectionHandler({"default": settings}).settings["default"]
    return filled


@contextmanager
def installed(alias: str, settings: dict[str, Any]) -> Iterator[None]:
    """Put these settings under `alias`; afterwards restore the former settings and connection."""
    known = alias in connections.settings
    before, connection = connections.settings.get(alias), connections[alias] if known else None
    connections.settings[alias] = settings
    connections[alias] = connections.create_connection(alias)
    try:
        yield
    finally:
        connections[alias].close()
        if known:
            connections.settings[alias] = before
            connections[alias] = connection
        else:
            del connections.settings[alias]
            del connections[alias]


def rabbitmq_url() -> str:
    return os.environ.get("RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//")


def redis_url(database: int = 8) -> str:
    """The server of REDIS_URL, with a database number of our own."""
    server = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
    return f"{server.rpartition('/')[0]}/{database}"
