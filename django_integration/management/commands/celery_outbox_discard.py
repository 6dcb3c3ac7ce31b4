"""`manage.py celery_outbox_discard`: `celery outbox discard` for a Django project."""

from __future__ import annotations

from celery_outbox_steps import cli
from django_integration.management.base import OutboxCommand


class Command(OutboxCommand):
    command = cli.discard
    help = str(cli.discard.help)
