"""A plain app whose author forgot the line that adds the step."""

from __future__ import annotations

from celery import Celery

from celery_outbox_steps import install

app = Celery("no_step", broker="memory://")
install(app)
