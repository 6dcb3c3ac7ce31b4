"""The Celery app: `OutboxCelery` stores the calls, `OutboxRelayStep` publishes them."""

import os

from celery_outbox_steps import OutboxRelayStep
from django_integration import OutboxCelery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = OutboxCelery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.steps["worker"].add(OutboxRelayStep)
