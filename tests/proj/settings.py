"""The smallest Django + Celery project. Which database: OUTBOX_TEST_DB, SQLite by default."""

from __future__ import annotations

import os

from tests.harness.settings import database_settings

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


VENDOR = os.environ.get("OUTBOX_TEST_DB", "sqlite")
NAME = "/tmp/celery_outbox_tests.sqlite3" if VENDOR == "sqlite" else "test"
DATABASES = {"default": database_settings(VENDOR, os.environ.get("OUTBOX_TEST_DB_NAME", NAME))}
