"""The README as it stands, in a new `django-admin startproject`: at the end the task has run.

Nothing is taken from this checkout but a wheel: the package is installed as the README says, into
an environment of its own. The project that the README takes for granted (a Celery broker, an app
`accounts`) is what `existing_project` writes, and nothing more.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import README, ROOT, blocks, shell_lines
from tests.docs.processes import run, running, with_programs_of
from tests.helpers import wait_for

if TYPE_CHECKING:
    from pathlib import Path

BROKER = """
CELERY_BROKER_URL = "filesystem://localhost"
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control",
}
INSTALLED_APPS += ["accounts"]
"""
SIGN_UP = "from accounts.signup import sign_up; sign_up('ada')"


@pytest.fixture(scope="module")
def environment(
    tmp_path_factory: pytest.TempPathFactory, wheel_environment: dict[str, str]
) -> dict[str, str]:
    """A new virtual environment with what the README's `pip install` line installs."""
    home = tmp_path_factory.mktemp("environment")
    run([sys.executable, "-m", "venv", str(home)], home, wheel_environment)
    env = with_programs_of(home, wheel_environment)
    (install,) = [line for line in readme_commands() if line.startswith("pip install")]
    run(install, home, env)
    return env


@pytest.fixture(scope="module")
def existing_project(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    home = tmp_path_factory.mktemp("readme")
    run("django-admin startproject proj . && python manage.py startapp accounts", home, environment)
    (home / "queue").mkdir()
    with (home / "proj" / "settings.py").open("a") as settings:
        settings.write(BROKER)
    return home


def readme_commands() -> list[str]:
    return shell_lines([block for block in blocks(README) if block.language == "sh"])


def apply_snippets(project: Path) -> None:
    """Write each Python block to the file that the text above it names; settings grow."""
    for block in (each for each in blocks(README) if each.language == "python"):
        assert block.file is not None, f"the README does not say where this belongs: {block}"
        mode = "a" if block.file.endswith("settings.py") else "w"
        with (project / block.file).open(mode) as file:
            file.write(block.text)


@pytest.mark.timeout(600)
def test_the_readme_as_it_stands(
    existing_project: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    project, env = existing_project, environment
    apply_snippets(project)
    commands = [line for line in readme_commands() if not line.startswith(("pip", "make"))]
    migrate, worker, *looking = commands
    assert "celery_outbox.0001_initial" in run(migrate, project, env)
    with running(f"exec {worker}", project, env, tmp_path / "worker.log") as log:
        run(["python", "manage.py", "shell", "-c", SIGN_UP], project, env)
        wait_for(lambda: "ada" in log.read_text(), 120, log.read_text)
        said = "".join(run(command, project, env) for command in looking)
    assert "Welcome" in log.read_text()
    assert "waiting        0" in said
    assert "relaying" in said


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = [line.split()[1] for line in readme_commands() if line.startswith("make ")]
    assert targets == ["demo", "test"]
    for target in targets:
        assert f"\n{target}:" in makefile


def test_every_shell_line_is_run_by_a_test() -> None:
    """What the README's test does not run is run by `test_demo` and by CI."""
    others = [line for line in readme_commands() if line.startswith("make ")]
    assert others == ["make demo", "make test"]
    assert len(readme_commands()) == len(others) + 1 + 4
