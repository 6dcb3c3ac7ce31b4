"""The Celery app of the project: one class in the place of `Celery`."""

from __future__ import annotations

import os

from django_integration import OutboxCelery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.proj.settings")

app = OutboxCelery("proj", include=["tests.proj.tasks"])
app.config_from_object("django.conf:settings", namespace="CELERY")
