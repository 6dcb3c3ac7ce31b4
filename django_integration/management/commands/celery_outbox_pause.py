"""`manage.py celery_outbox_pause`: `celery outbox pause` for a Django project."""

from __future__ import annotations

from celery_outbox_steps import cli
from django_integration.management.base import OutboxCommand


class Command(OutboxCommand):
    command = cli.pause
    help = str(cli.pause.help)
