"""What a new user gets wrong first, and what is said then."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT
from tests.docs.processes import clean_environment

if TYPE_CHECKING:
    from pathlib import Path

MIGRATE = "python manage.py migrate"
CELERY = ["-m", "celery"]
PLAIN = "from celery import Celery\napp = Celery('plain', broker='memory://')\n"
SETTINGS = """
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
USE_TZ = True
"""
NOT_INSTALLED = """
import os
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings_without")
from django_integration import OutboxCelery

app = OutboxCelery("forgetful", broker="memory://")
app.config_from_object("django.conf:settings", namespace="CELERY")

@app.task
def ping(): ...

if __name__ == "__main__":
    import django
    django.setup()
    ping.delay()
"""
CHECK = """
import forgetful
from django.core.management import execute_from_command_line

execute_from_command_line(["manage.py", "check"])
"""


def error_of(arguments: list[str], home: Path, **environment: str) -> str:
    """What a command that fails says."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=home,
        env=clean_environment(PYTHONPATH=f"{home}:{ROOT}", **environment),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    return done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "celery", "-A", "shop", "outbox", "status"],
        ["-m", "celery", "-A", "shop", "outbox", "drain"],
        ["manage.py", "celery_outbox_stats"],
        ["-m", "celery", "-A", "shop", "worker", "--outbox-relay", "--pool=solo"],
    ],
    ids=" ".join,
)
def test_before_migrate_the_fix_is_named(arguments: list[str], tmp_path: Path) -> None:
    said = error_of(arguments, ROOT / "examples" / "shop", SHOP_HOME=str(tmp_path))
    assert MIGRATE in said
    assert "Traceback" not in said


@pytest.mark.parametrize("app", [[], ["-A", "plain"]], ids=["no -A", "a plain app"])
def test_without_the_projects_app_a_command_says_how_to_name_it(
    app: list[str], tmp_path: Path
) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    said = error_of([*CELERY, *app, "outbox", "status"], tmp_path)
    assert "Error: Django is not set up. Name the Celery app of your project" in said
    assert "celery -A proj outbox status" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "arguments",
    [
        [*CELERY, "-A", "forgetful", "outbox", "status"],
        [*CELERY, "-A", "forgetful", "worker", "--outbox-relay", "--pool=solo"],
        ["forgetful.py"],
        ["-c", CHECK],
    ],
    ids=["status", "worker", "delay", "check"],
)
def test_a_package_that_is_not_installed_is_named(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "settings_without.py").write_text(SETTINGS)
    (tmp_path / "forgetful.py").write_text(NOT_INSTALLED)
    said = error_of(arguments, tmp_path)
    assert 'INSTALLED_APPS has no "django_integration"' in said
    assert MIGRATE in said
    if arguments != ["forgetful.py"]:
        assert "Traceback" not in said
