"""Django's settings of a test database, defined once for all test projects and the benchmarks.

Standard library only: settings modules import this before Django is configured.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.services import Service

ENGINES = {"postgres": "postgresql", "mariadb": "mysql"}
"""Names of services, mapped to Django's vendors."""


def database_settings(vendor: str, name: str, service: Service | None = None) -> dict[str, Any]:
    """The settings of a database on `service`, or on the server that the environment names."""
    vendor = ENGINES.get(vendor, vendor)
    engine = f"django.db.backends.{'sqlite3' if vendor == 'sqlite' else vendor}"
    if vendor == "sqlite":
        return {"ENGINE": engine, "NAME": name, "OPTIONS": {"timeout": 20}}
    prefix, port = {"postgresql": ("PG", "5432"), "mysql": ("MYSQL_", "3306")}[vendor]
    settings = {
        "ENGINE": engine,
        "NAME": name,
        "HOST": service.host if service else os.environ.get(f"{prefix}HOST", "127.0.0.1"),
        "PORT": str(service.port) if service else os.environ.get(f"{prefix}PORT", port),
    }
    if vendor == "mysql":
        return {**settings, "USER": "root", "PASSWORD": "", "OPTIONS": {"charset": "utf8mb4"}}
    return {**settings, "USER": os.environ.get("PGUSER", "postgres")}
