"""The smallest Django + Celery project. Which database: OUTBOX_TEST_DB, SQLite by default."""

from __future__ import annotations

import os
from typing import Any

SECRET_KEY = "tests"  # noqa: S105
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_integration",
]


def _database(vendor: str) -> dict[str, Any]:
    name = os.environ.get("OUTBOX_TEST_DB_NAME", "test")
    if vendor == "postgresql":
        return {
            "ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": "postgres",
            "HOST": os.environ.get("PGHOST", "127.0.0.1"), "PORT": os.environ.get("PGPORT", "5432"),
        }
    if vendor == "mysql":
        return {
            "ENGINE": "django.db.backends.mysql", "NAME": name, "USER": "root", "PASSWORD": "",
            "HOST": os.environ.get("MYSQL_HOST", "127.0.0.1"), "PORT": os.environ.get("MYSQL_PORT", "3306"),
            "OPTIONS": {"charset": "utf8mb4"},
        }
    return {"ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ.get("OUTBOX_TEST_DB_NAME", "/tmp/celery_outbox_tests.sqlite3"),  # noqa: S108
            "OPTIONS": {"timeout": 20}}


DATABASES = {"default": _database(os.environ.get("OUTBOX_TEST_DB", "sqlite"))}
