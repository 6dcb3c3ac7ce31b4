"""`manage.py celery_outbox_replay_dead_letter`: `celery outbox replay` for a Django project."""

from __future__ import annotations

from celery_outbox_steps import cli
from django_integration.management.base import OutboxCommand


class Command(OutboxCommand):
    command = cli.replay
    help = str(cli.replay.help)
