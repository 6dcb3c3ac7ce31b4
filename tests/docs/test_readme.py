"""The README as it stands, in a new `django-admin startproject`: at the end the task has run.

Then its outbox is broken and mended as the README shows; a command's comment is what it prints.
Nothing is taken from this checkout but a wheel: the package is installed as the README says, into
an environment of its own. The project that the README takes for granted (a Celery broker, an app
`accounts`) is what `existing_project` writes, and nothing more.
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import README, ROOT, blocks, shell_lines
from tests.docs.processes import run, running, with_programs_of
from tests.helpers import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def readme_commands(section: str = "") -> list[str]:
    return shell_lines([block for block in blocks(README, section) if block.language == "sh"])


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
    _install, migrate, worker, *looking = readme_commands("Use it")
    assert "celery_outbox.0001_initial" in run(migrate, project, env)
    with running(f"exec {worker}", project, env, tmp_path / "worker.log") as log:
        run(["python", "manage.py", "shell", "-c", SIGN_UP], project, env)
        wait_for(lambda: "ada" in log.read_text(), 120, log.read_text)
        said = "".join(run(command, project, env) for command in looking)
    assert "Welcome, ada" in log.read_text()
    assert "waiting        0" in said
    assert "relaying" in said


@pytest.fixture
def reader(existing_project: Path, environment: dict[str, str]) -> Iterator[Reader]:
    if not (existing_project / "accounts" / "signup.py").exists():
        pytest.skip("needs the project of the test above: run the whole module")
    reader = Reader(existing_project, environment)
    yield reader
    reader.stop_worker()


class Reader:
    """Types the commands of a section, and looks for what their comments say."""

    def __init__(self, project: Path, env: dict[str, str]) -> None:
        self._project, self._env = project, env
        self._pid = project / "worker.pid"

    def type(self, line: str) -> None:
        command, _, expected = line.partition("  # ")
        if command.endswith("&"):
            wait_for(lambda: not self._pid.exists(), 30)  # the one before has stopped
        if expected:
            wait_for(lambda: shows(self._said(command), expected), 30, lambda: self._said(command))
        else:
            run(command, self._project, self._env)

    def stop_worker(self) -> None:
        if self._pid.exists():
            run("kill $(cat worker.pid)", self._project, self._env)
            wait_for(lambda: not self._pid.exists(), 60)

    def _said(self, command: str) -> str:
        return run(f"{command} || true", self._project, self._env)


@pytest.mark.timeout(120)
def test_a_reader_sees_it_break_and_mends_it(reader: Reader) -> None:
    lines = [
        line
        for block in blocks(README, "See it break, and mend it")
        for line in block.text.splitlines()
        if block.language == "sh"
    ]
    assert sum("  # " in line for line in lines) == 6
    for line in lines:
        reader.type(line)


def shows(said: str, expected: str) -> bool:
    """Where `…` stands for anything within the line."""
    return re.search(".*".join(map(re.escape, expected.split("…"))), said) is not None


def test_the_description_on_pypi_has_no_link_into_the_repository(
    wheel_environment: dict[str, str],
) -> None:
    folder = Path(wheel_environment["PIP_FIND_LINKS"].split()[0])
    (wheel,) = folder.glob("celery_outbox_steps-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        text = archive.read(metadata).decode()
    assert "## Use it" in text
    assert re.findall(r"\]\((?!https:)[^)]*\)", text) == []


def test_the_badges_are_the_versions_that_are_tested() -> None:
    matrix = re.findall(
        r'\("(3\.\d+)", "(\d\.\d)", "(\d\.\d)"\)', (ROOT / "noxfile.py").read_text()
    )
    versions = [sorted(set(each), key=_as_numbers) for each in zip(*matrix, strict=True)]
    badges = "\n".join(README.read_text().splitlines()[:10])
    for name, found in zip(("python", "celery", "django"), versions, strict=True):
        assert f"/badge/{name}-{found[0]}_to_{found[-1]}-" in badges


def _as_numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


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
    tested = [*readme_commands("Use it"), *readme_commands("See it break, and mend it")]
    assert sorted(readme_commands()) == sorted([*others, *tested])
