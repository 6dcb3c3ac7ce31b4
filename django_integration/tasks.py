"""The purge as a task, for Celery beat. `celery_outbox_steps.operate` does the work.

app.conf.beat_schedule = {
    "purge-outbox": {"task": "celery_outbox.purge", "schedule": 3600.0},
}
"""

from __future__ import annotations

from typing import Any

from celery import shared_task

from celery_outbox_steps import operate


@shared_task(bind=True, name="celery_outbox.purge", ignore_result=True)  # type: ignore[untyped-decorator]
def purge(
    self: Any,
    published_older_than: float | None = None,
    dead_older_than: float | None = None,
    task_name: str | None = None,
) -> dict[str, int]:
    """Delete what is older than its retention. Ages are seconds; by default from the settings."""
    plan = operate.purge_plan(self.app, published_older_than, dead_older_than, task_name)
    return operate.purge(self.app, plan)
