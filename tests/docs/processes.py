"""Subprocesses of the docs tests: a clean environment, and words when something fails."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.harness.processes import LocalProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# What pytest or a developer's shell may have set, and a reader has not.
UNWANTED = ("DJANGO_", "CELERY_", "PYTHONPATH", "DATABASE_URL", "BROKER_URL", "DEMO_", "SHOP_")


def clean_environment(**extra: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(UNWANTED)}
    return {**kept, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", **extra}


def with_programs_of(venv: Path, env: dict[str, str]) -> dict[str, str]:
    """As after `. bin/activate`."""
    return {**env, "PATH": f"{venv / 'bin'}{os.pathsep}{env['PATH']}"}


def run(command: str | list[str], cwd: Path, env: dict[str, str], timeout: float = 170) -> str:
    """What the command printed. Fails with it where the command does."""
    done = subprocess.run(
        command, cwd=cwd, env=env, timeout=timeout, shell=isinstance(command, str),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: exit status {done.returncode}\n{done.stdout}"
    return done.stdout


@contextmanager
def running(command: str | list[str], cwd: Path, env: dict[str, str], log: Path) -> Iterator[Path]:
    """A process in the background, asked to stop in the end and killed if it does not."""
    process = LocalProcess(command, name=log.stem, cwd=cwd, env=env)
    process.log = log
    process.start()
    try:
        yield log
    finally:
        process.stop(60)  # only the first one: a pool's children wait for their parent
