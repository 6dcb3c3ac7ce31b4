"""The smallest Django + Celery project. Which database: OUTBOX_TEST_DB, SQLite by default."""

from __future__ import annotations

import os
from typing import Any

SECRET_KEY = "tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_integration",
]

CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL") or os.environ.get(
    "RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//"
)


def database_settings(vendor: str) -> dict[str, Any]:
    """The settings of a database on the server that the environment names."""
    name = os.environ.get("OUTBOX_TEST_DB_NAME")
    if vendor == "postgresql":
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": name or "test",
            "USER": os.environ.get("PGUSER", "postgres"),
            "HOST": os.environ.get("PGHOST", "127.0.0.1"),
            "PORT": os.environ.get("PGPORT", "5432"),
        }
    if vendor == "mysql":
        return {
            "ENGINE": "django.db.backends.mysql",
            "NAME": name or "test",
            "USER": "root",
            "PASSWORD": "",
            "HOST": os.environ.get("MYSQL_HOST", "127.0.0.1"),
            "PORT": os.environ.get("MYSQL_PORT", "3306"),
            "OPTIONS": {"charset": "utf8mb4"},
        }
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": name or "/tmp/celery_outbox_tests.sqlite3",
        "OPTIONS": {"timeout": 20},
    }


DATABASES = {"default": database_settings(os.environ.get("OUTBOX_TEST_DB", "sqlite"))}
