"""`DATABASE_URL` as an entry of Django's DATABASES."""

from typing import Any
from urllib.parse import unquote, urlsplit

import django

ENGINES = {
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite3",
}


def database(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    engine = ENGINES[parts.scheme]
    if engine == "sqlite3":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": parts.path, "OPTIONS": _sqlite()}
    if engine == "mysql":
        _driver_for_mysql()
    return {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }


def _sqlite() -> dict[str, Any]:
    """Writers wait for each other. Django before 5.1 can't begin with the write lock."""
    options: dict[str, Any] = {"timeout": 30}
    if django.VERSION >= (5, 1):
        options["transaction_mode"] = "IMMEDIATE"
        options["init_command"] = "PRAGMA journal_mode=WAL"
    return options


def _driver_for_mysql() -> None:
    """mysqlclient where it is installed, PyMySQL otherwise."""
    try:
        import MySQLdb  # noqa: F401
    except ImportError:
        import pymysql

        pymysql.version_info = (2, 2, 1, "final", 0)  # what Django asks for
        pymysql.install_as_MySQLdb()
