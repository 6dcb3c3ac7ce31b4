"""A plain Celery app: what a project has before it has an outbox."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.project.settings")

app = Celery("benchmarks", include=["benchmarks.project.tasks"])
app.config_from_object("django.conf:settings", namespace="CELERY")
