"""The Celery app: `OutboxCelery` stores the calls, and its workers publish them."""

import os

from django_integration import OutboxCelery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = OutboxCelery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
