"""A project with a library in it: workers, commands, servers and scripts with its settings.

The stage of the acceptance tests has the database, the broker and the ledger of what ran; this adds
the processes that a project has beside its workers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests import helpers
from tests.harness.processes import LocalProcess

if TYPE_CHECKING:
    from tests.acceptance.stage import Stage
    from tests.harness.workers import Worker

SETTINGS = "tests.acceptance.project.settings"
BASE_APPS = ("django.contrib.contenttypes", "django.contrib.auth", "django_integration")
PRELUDE = """
import json, os, sys
import django
django.setup()
from django.db import transaction
def answer(value):
    print("answer:", json.dumps(value, default=str), flush=True)
"""


class Scene:
    """One project. `app` is the module of its Celery app, `apps` are further Django apps."""

    def __init__(self, stage: Stage, app: str, apps: tuple[str, ...] = ()) -> None:
        self.stage, self.app = stage, app
        stage.settings.setdefault("INSTALLED_APPS", [*BASE_APPS, *apps])
        stage.settings.setdefault("CELERY_TASK_IGNORE_RESULT", True)
        self._processes: list[LocalProcess] = []

    def worker(self, *flags: str, **more: Any) -> Worker:
        return self.stage.worker(*flags, app=self.app, **more)

    def migrate(self) -> None:
        self.django("migrate", "--verbosity", "0")

    def django(self, *arguments: str) -> str:
        return self._run("-m", "django", *arguments)

    def script(self, code: str, *launcher: str) -> Any:
        """What a caller's process `answer()`s. `launcher`: modules to run Python with."""
        output = self._run(*launcher, "-c", PRELUDE + code)
        lines = [line for line in output.splitlines() if line.startswith("answer: ")]
        return json.loads(lines[-1].partition(" ")[2]) if lines else None

    def start(self, name: str, *arguments: str) -> LocalProcess:
        """A process beside the workers: beat, Flower. It ends with the scene."""
        command = [sys.executable, "-m", *arguments]
        process = LocalProcess(command, name=name, cwd=self.stage.path, env=self._environment())
        process.start()
        self._processes.append(process)
        return process

    def celery(self, name: str, *arguments: str) -> LocalProcess:
        return self.start(name, "celery", "-A", self.app, *arguments)

    def wait_for_run(self, name: str, times: int = 1) -> None:
        """Wait until tasks have left this name in the ledger."""
        ran = self.stage.ran_names
        helpers.wait_for(
            lambda: ran().count(name) >= times, 40, lambda: f"{name} in {ran()}\n{self.logs()}"
        )

    def logs(self) -> str:
        return "\n".join([self.stage.logs(), *(each.logs().decode() for each in self._processes)])

    def close(self) -> None:
        for process in self._processes:
            process.stop(5)

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.stage.path, env=self._environment(),
            capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _environment(self) -> dict[str, str]:
        return {**self.stage._environment(), "DJANGO_SETTINGS_MODULE": SETTINGS}
