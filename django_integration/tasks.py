"""The purge as a task, for Celery beat.

app.conf.beat_schedule = {
    "purge-outbox": {"task": "celery_outbox.purge", "schedule": 3600.0},
}
"""

from __future__ import annotations

import logging
from typing import Any

from celery import shared_task

from celery_outbox_steps import operate

logger = logging.getLogger("celery_outbox")


@shared_task(bind=True, name="celery_outbox.purge", ignore_result=True)  # type: ignore[untyped-decorator]
def purge(
    self: Any,
    published_older_than: float | None = None,
    dead_older_than: float | None = None,
    task_name: str | None = None,
) -> dict[str, int]:
    """Delete what is older than its retention. Ages are seconds; by default from the settings."""
    plan = operate.purge_plan(self.app, published_older_than, dead_older_than, task_name)
    if plan.is_empty:
        logger.warning(
            "celery_outbox_nothing_to_purge: set CELERY_OUTBOX_RETENTION or "
            "CELERY_OUTBOX_DLQ_RETENTION, or give the task an age",
            extra={"event": "celery_outbox_nothing_to_purge"},
        )
    return operate.purge(self.app, plan)
