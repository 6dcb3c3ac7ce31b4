"""Schedulers in place of Celery's own: what they call is stored, relayed and run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ecosystem.scene import Scene

pytestmark = [pytest.mark.postgresql, pytest.mark.rabbitmq, pytest.mark.redis]


@pytest.mark.library("django-celery-beat")
def test_a_periodic_task_of_the_database_runs(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(
        apps=("django_celery_beat",),
        CELERY_BEAT_SCHEDULER="django_celery_beat.schedulers:DatabaseScheduler",
        CELERY_BEAT_MAX_LOOP_INTERVAL=1,
    )
    scene.migrate()
    scene.script("""
from django_celery_beat.models import IntervalSchedule, PeriodicTask
every, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
PeriodicTask.objects.create(name="tick", interval=every, task="note", args='["tick"]')
""")
    scene.worker()
    scene.celery("beat", "beat", "-l", "INFO")
    scene.wait_for_run("tick", times=2)


@pytest.mark.library("celery-redbeat")
def test_entries_of_the_settings_and_of_redis_run(scene_with: Callable[..., Scene]) -> None:
    scene = scene_with(
        CELERY_BEAT_SCHEDULER="redbeat.RedBeatScheduler",
        CELERY_BEAT_MAX_LOOP_INTERVAL=1,
        CELERY_BEAT_SCHEDULE={"static": {"task": "note", "schedule": 1, "args": ["static"]}},
    )
    stage = scene.stage
    stage.settings["CELERY_REDBEAT_REDIS_URL"] = stage.ledger
    stage.settings["CELERY_REDBEAT_KEY_PREFIX"] = f"{stage.prefix}:redbeat:"
    scene.script("""
from celery.schedules import schedule
from redbeat import RedBeatSchedulerEntry
from tests.ecosystem.project.app import app
RedBeatSchedulerEntry("dynamic", "note", schedule(1), args=["dynamic"], app=app).save()
""")
    scene.worker()
    scene.celery("beat", "beat", "-l", "INFO")
    scene.wait_for_run("static", times=2)
    scene.wait_for_run("dynamic", times=2)
