"""A Django project with the admin, for the cases beside it. Which database: OUTBOX_ADMIN_DB."""

from __future__ import annotations

import os
from typing import Any

from tests.harness.settings import database_settings

SECRET_KEY = "tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "tests.integration.admin.urls"
STATIC_URL = "/static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_integration",
]
MIDDLEWARE = [
    "tests.integration.admin.project.only_scripts_from_files",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]
CELERY_OUTBOX_APP = "tests.integration.admin.project.app"
CELERY_OUTBOX_REDACTOR = "tests.integration.admin.project.hide_cards"


def _database(vendor: str) -> dict[str, Any]:
    """A database of this run's own: pytest-django creates and drops `test_<NAME>`."""
    name = ":memory:" if vendor == "sqlite" else f"celery_outbox_admin_{os.getpid()}"
    return database_settings(vendor, name)


DATABASES = {
    "default": _database(os.environ.get("OUTBOX_ADMIN_DB", "postgresql")),
    "orders": _database("sqlite"),
}
