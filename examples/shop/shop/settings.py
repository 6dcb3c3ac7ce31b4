"""Settings of the shop. Without any variable: SQLite and a directory as the broker, no server.

DATABASE_URL  postgres://user:password@host:port/name, mysql://…, sqlite:////path
BROKER_URL    amqp://…, redis://…, or filebroker:// for the directory
SHOP_HOME     where the SQLite file and the broker's directory live
SHOP_URLS     the module of the URLs, if there are more than the shop's
SHOP_KEEPS    for how many seconds published messages are kept, to be seen in the admin
"""

import os
from datetime import timedelta
from pathlib import Path

from shop import filebroker
from shop.urls_of_databases import database

BASE_DIR = Path(__file__).resolve().parent.parent
HOME = Path(os.environ.get("SHOP_HOME", BASE_DIR / "var"))
HOME.mkdir(parents=True, exist_ok=True)

SECRET_KEY = "for a demo on your own machine only"
DEBUG = True
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = os.environ.get("SHOP_URLS") or "shop.urls"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_integration",
    "orders",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "DIRS": [BASE_DIR / "demo" / "templates"],
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {
    "default": database(os.environ.get("DATABASE_URL") or f"sqlite:///{HOME}/shop.sqlite3")
}

CELERY_BROKER_URL = os.environ.get("BROKER_URL") or "filebroker://localhost"
if CELERY_BROKER_URL.startswith("filebroker:"):
    CELERY_BROKER_TRANSPORT_OPTIONS = filebroker.options(HOME / "broker")
CELERY_TASK_DEFAULT_QUEUE = os.environ.get("SHOP_QUEUE", "shop")
CELERY_TASK_IGNORE_RESULT = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True

CELERY_OUTBOX_KEEP_FAILED_TASKS = ["*"]
CELERY_OUTBOX_RETENTION = timedelta(seconds=float(os.environ.get("SHOP_KEEPS") or 0)) or None
# The demo shows what a direct publish does with a task that is excluded from the outbox.
CELERY_OUTBOX_EXCLUDE_TASKS = ["orders.tasks.send_receipt_directly"]
if os.environ.get("DEMO_BREAK") == "outbox":  # on purpose: the demo must fail
    CELERY_OUTBOX_EXCLUDE_TASKS = ["*"]
