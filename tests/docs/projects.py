"""A Django project with the settings of a page, in an empty directory, on SQLite."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.docs.pages import README, ROOT, blocks
from tests.docs.processes import clean_environment, run, running
from tests.helpers import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BASE = """
INSTALLED_APPS = ["django_integration"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "outbox.sqlite3"}}
USE_TZ, TIME_ZONE = True, "UTC"
"""


class Project:
    """`proj` with the README's Celery app, and what a test adds to settings and app."""

    def __init__(self, home: Path, settings: str, app: str = "") -> None:
        self.home = home
        self.env = clean_environment(
            DJANGO_SETTINGS_MODULE="proj.settings", PYTHONPATH=f"{ROOT}:{home}", C_FORCE_ROOT="1"
        )
        package = home / "proj"
        package.mkdir()
        (celery,) = [each.text for each in blocks(README) if each.file == "proj/celery.py"]
        (loaded,) = [each.text for each in blocks(README) if each.file == "proj/__init__.py"]
        (package / "__init__.py").write_text(loaded)
        (package / "settings.py").write_text(BASE + settings)
        (package / "celery.py").write_text(celery + app)
        run([sys.executable, "-m", "django", "migrate"], home, self.env)

    def python(self, text: str) -> str:
        """Run a script in the project."""
        return run([sys.executable, "-c", text], self.home, self.env)

    def celery(self, command: str) -> str:
        """Run a command of `celery -A proj`."""
        line = [sys.executable, "-m", "celery", "-A", "proj", *command.split()]
        return run(line, self.home, self.env)

    @contextmanager
    def worker(self, command: str) -> Iterator[Path]:
        """A worker that relays, by the command of a page. Its log."""
        line = f"exec {sys.executable} -m {command} --pool solo"
        with running(line, self.home, self.env, self.home / "worker.log") as log:
            wait_for(lambda: "relaying" in log.read_text(), 60, log.read_text)
            yield log
