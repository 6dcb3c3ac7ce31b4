"""Says once that calls bypass the outbox, because `@shared_task` uses an app that is none of ours.

Such calls go to the broker in the middle of a transaction, and nothing fails. Celery tells when an
app's tasks are used for the first time, so that no call pays for this. Apps that are separate on
purpose, and not Celery's current or default app, are not looked at. The same is a system check for
processes where no `OutboxCelery` exists at all: W006 in `checks.py`.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from celery_outbox_steps.observe.log import log
from django_integration.upstream.celery import app_of_shared_tasks, default_app, on_tasks_used


@cache
def watch_other_apps(ours: type[Any]) -> None:
    """From now on, say once if shared tasks are those of an app that is not one of `ours`."""
    tell = partial(_tell_if_bypassed, ours, set())
    on_tasks_used(tell)
    before = default_app()
    if before is not None and before.finalized:
        tell(before)


def _tell_if_bypassed(ours: type[Any], told: set[str], app: Any) -> None:
    in_use = app_of_shared_tasks(), default_app()
    if isinstance(app, ours) or told or not any(app is each for each in in_use):
        return
    told.add(app.main)
    log("celery_outbox_bypassed", str(app.main), app_name=str(app.main))
