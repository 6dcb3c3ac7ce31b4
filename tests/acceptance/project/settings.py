"""Django settings of the workers under test; the test says through the environment what differs."""

from __future__ import annotations

import json
import os
import sys

if os.environ.get("ACCEPTANCE_PSYCOPG2"):
    sys.modules["psycopg"] = None  # type: ignore[assignment]  # Django then takes psycopg2

SECRET_KEY = "acceptance"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_integration"]
DATABASES = json.loads(os.environ.get("ACCEPTANCE_DATABASES", "{}"))

CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = True
# Everything else, from the test: broker, queues, CELERY_OUTBOX_*.
globals().update(json.loads(os.environ.get("ACCEPTANCE_SETTINGS", "{}")))
