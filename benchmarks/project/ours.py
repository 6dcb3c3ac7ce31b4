"""Our app, as the README shows it."""

from __future__ import annotations

import os

from celery_outbox_steps import OutboxRelayStep
from django_integration import OutboxCelery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.project.settings")

app = OutboxCelery("benchmarks", include=["benchmarks.project.tasks"])
app.config_from_object("django.conf:settings", namespace="CELERY")
app.steps["worker"].add(OutboxRelayStep)
