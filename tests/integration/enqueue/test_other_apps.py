"""Calls of `@shared_task` that use another app bypass the outbox: that is said once, by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = """
import os, threading
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.proj.settings"
from celery import Celery, shared_task

@shared_task
def add(x): ...

def call(times=1):
    for number in range(times):
        add.delay(number)

def in_thread():
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()

def ours():
    from django_integration import OutboxCelery
    app = OutboxCelery("proj", broker="memory://")
    import django
    django.setup()
    return app
"""
CURRENT = 'ours(); other = Celery("reports", broker="memory://"); call(2)'
DEFAULT = 'other = Celery("reports", broker="memory://"); ours(); in_thread(); in_thread()'
TOO_LATE = "from celery import current_app; current_app.tasks; app = ours(); app.tasks"
TWO = CURRENT + '; Celery("more", broker="memory://"); call()'
APART = """
app = ours()
other = Celery("reports", broker="memory://", set_as_current=False)
other.send_task("report")
other.tasks
assert add.app is app
"""
ONLY_OURS = 'app = ours(); app.tasks; app.conf.outbox_exclude_tasks = ["*"]; call()'


def said_by(script: str) -> list[str]:
    """The lines that a process logs about it."""
    done = subprocess.run(
        [sys.executable, "-c", PROJECT + script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if "celery_outbox_bypassed" in line]


@pytest.mark.parametrize(
    ("script", "name"),
    [(CURRENT, "reports"), (DEFAULT, "reports"), (TOO_LATE, "default"), (TWO, "reports")],
    ids=["current app", "app of threads", "Celery's fallback", "a third app"],
)
def test_an_app_that_takes_the_calls_is_named_once(script: str, name: str) -> None:
    (line,) = said_by(script)
    assert f"go to the app '{name}', which is no OutboxCelery" in line


@pytest.mark.parametrize("script", [APART, ONLY_OURS], ids=["apart", "ours, tasks excluded"])
def test_an_app_that_takes_none_is_not(script: str) -> None:
    assert said_by(script) == []
