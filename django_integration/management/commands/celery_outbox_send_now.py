"""`manage.py celery_outbox_send_now`: `celery outbox send-now` for a Django project."""

from __future__ import annotations

from celery_outbox_steps import cli
from django_integration.management.base import OutboxCommand


class Command(OutboxCommand):
    command = cli.send_now
    help = str(cli.send_now.help)
