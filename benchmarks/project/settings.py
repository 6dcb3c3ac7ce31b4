"""Django settings of every process in a benchmark; environment variables say which side it is.

OUTBOX_BENCH_SIDE    ours (default) or peer
OUTBOX_BENCH_DB      vendor:name of the default database
OUTBOX_BENCH_BROKER  rabbitmq (default), redis, or confirmed: RabbitMQ with `confirm_publish`
OUTBOX_BENCH_EVENTS  set: there is a destination for events, the measured queue in RabbitMQ
"""

from __future__ import annotations

import os
from typing import Any

from tests.harness.settings import database_settings

SIDE = os.environ.get("OUTBOX_BENCH_SIDE", "ours")
BROKER = os.environ.get("OUTBOX_BENCH_BROKER", "rabbitmq")
RABBITMQ_URL = os.environ.get("RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//")
REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0").rpartition("/")[0] + "/13"

TARGET = "outbox-bench.target"
"""Where the measured messages go; without a consumer unless a section starts one."""
IDLE = "outbox-bench.idle"
"""The empty queue that a worker consumes while its relay is measured."""


def database(where: str) -> dict[str, Any]:
    """Settings of `vendor:name`, on the server that the environment names."""
    vendor, _, name = where.partition(":")
    settings = database_settings(vendor, name)
    if vendor == "sqlite":
        wal = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
        settings["OPTIONS"] |= {"init_command": wal, "transaction_mode": "IMMEDIATE"}
    return settings


SECRET_KEY = "benchmarks"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": database(os.environ.get("OUTBOX_BENCH_DB", "postgresql:outbox_bench"))}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_celery_outbox" if SIDE == "peer" else "django_integration",
]

CELERY_BROKER_URL = REDIS_URL if BROKER == "redis" else RABBITMQ_URL
CELERY_BROKER_TRANSPORT_OPTIONS = {"confirm_publish": True} if BROKER == "confirmed" else {}
CELERY_TASK_DEFAULT_QUEUE = TARGET
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = True
CELERY_OUTBOX_APP = (
    "benchmarks.project.peer.app" if SIDE == "peer" else "benchmarks.project.ours:app"
)
if "OUTBOX_BENCH_EVENTS" in os.environ:
    CELERY_OUTBOX_DESTINATIONS = {"events": {"url": RABBITMQ_URL, "queue": TARGET}}
