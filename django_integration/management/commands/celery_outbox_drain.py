"""`manage.py celery_outbox_drain`: publish everything that is due, without a worker."""

from __future__ import annotations

from typing import Any

from celery_outbox_steps import operate
from django_integration.management.base import OutboxCommand


class Command(OutboxCommand):
    help = "Publish everything that is due in the outbox, from this process."

    def run(self, app: Any, _: dict[str, Any]) -> str:
        due = sum(each["depth"] for each in operate.status(app, 0))
        result = self.with_bar("Draining", due, lambda on: operate.drain(app, on))
        return (
            f"{result.published} published, {result.retried} to be tried again, "
            f"{result.dead} dead letters"
        )
