"""django-celery-outbox's app, as its README shows it. Runs in an environment of its own."""

from __future__ import annotations

import os

from django_celery_outbox.app import OutboxCelery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.project.settings")

app = OutboxCelery("benchmarks", include=["benchmarks.project.tasks"])
app.config_from_object("django.conf:settings", namespace="CELERY")
