"""The tutorial from its first command to its last, in an empty directory.

The commands that other pages show are then run in the same project, while its worker runs. For
these it gets what they name: a destination, and a second database.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import DOCS, Block, blocks, name, pages, shell_lines
from tests.docs.processes import run, with_programs_of
from tests.harness.processes import LocalProcess
from tests.helpers import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TUTORIAL = DOCS / "tutorial.md"
COMMAND = re.compile(
    r"^(?:    )?((?:celery -A proj (?:outbox|inspect|control)"
    r"|python manage\.py (?:celery_outbox_|check))[^\n<`]*)$",
    re.MULTILINE,
)
MORE = """
DATABASES["orders"] = {**DATABASES["default"], "NAME": BASE_DIR / "orders.sqlite3"}
CELERY_OUTBOX_DATABASES = ["default", "orders"]
CELERY_OUTBOX_DESTINATIONS = {"partner": {"url": "memory://", "queue": "celery"}}
"""
pytestmark = pytest.mark.timeout(600)


class Reader:
    """A reader who follows the tutorial: writes its files, types its commands, compares."""

    def __init__(self, home: Path, env: dict[str, str]) -> None:
        self.home = home
        self.env = with_programs_of(home / ".venv", env)
        self.log = home / "worker.log"
        self.worker: LocalProcess | None = None
        self.said = ""
        self._worker_command = ""
        self.blocks = iter(blocks(TUTORIAL))

    def follow_to(self, text: str) -> str:
        """All blocks up to the one with this text. What the last command printed."""
        for block in self.blocks:
            self.follow(block)
            if text in block.text:
                return self.said
        raise AssertionError(f"the tutorial has no further block with {text!r}")

    def follow(self, block: Block) -> str:
        if block.language == "python":
            self._write(block)
        elif block.language == "text":
            missing = numberless(block.text) - numberless(self.said)
            assert not missing, f"{self.said}\nhas no {missing}"
        elif "worker --outbox-relay" in block.text:
            (self._worker_command,) = shell_lines([block])
            self.start_worker()
        else:
            self.said = run(block.text, self.home, self.env, timeout=300)
        return self.said

    def start_worker(self) -> None:
        command = f"exec {self._worker_command}"
        self.worker = LocalProcess(command, name="worker", cwd=self.home, env=self.env)
        self.worker.start()

    def kill_worker(self) -> None:
        if self.worker is not None:
            self.worker.end()

    def sees(self, text: str) -> None:
        wait_for(lambda: text in self.log.read_text(), 120, self.log.read_text)

    def _write(self, block: Block) -> None:
        assert block.file is not None, f"the tutorial does not say where this belongs: {block}"
        path = self.home / block.file
        text = path.read_text() if block.above.startswith("Append") else ""
        path.write_text(text + block.text)


def numberless(text: str) -> set[str]:
    """The lines, without the numbers that stand alone: ages differ from run to run."""
    return {re.sub(r"\b\d+(?= )", "#", line.strip()) for line in text.splitlines()}


@pytest.fixture(scope="module")
def reader(
    tmp_path_factory: pytest.TempPathFactory, wheel_environment: dict[str, str]
) -> Iterator[Reader]:
    reader = Reader(tmp_path_factory.mktemp("tutorial"), wheel_environment)
    yield reader
    reader.kill_worker()


def test_the_tutorial(reader: Reader) -> None:
    reader.follow_to("place('A-1')")
    assert waiting(reader.said) == waiting(reader.follow_to("place('A-2'")) == "1"
    reader.follow_to("worker --outbox-relay")
    reader.sees("receipt for A-1")
    inspecting = next(reader.blocks)
    assert "relaying" in wait_for(lambda: reader.follow(inspecting), 60)
    reader.follow_to("with_outbox('A-4')")
    reader.sees("receipt for A-4")
    reader.follow_to("'A-3': False")
    assert waiting(reader.follow_to("place('A-5')")) == "1"
    reader.kill_worker()  # is dead, and stays a zombie until its parent has looked
    reader.follow_to("mv queue-away queue")
    reader.start_worker()
    reader.sees("receipt for A-5")
    log = reader.log.read_text()
    assert [each for each in ("A-2", "A-3") if f"receipt for {each}" in log] == []


def waiting(said: str) -> str:
    return re.findall(r"waiting +(\d+)", said)[-1]


def shown_commands() -> list[tuple[str, str]]:
    found = {}
    for page in pages():
        for command in COMMAND.findall(page.read_text()):
            found.setdefault(command.partition("  #")[0].strip(), name(page))
    return sorted(found.items())


def test_there_are_commands() -> None:
    assert len(shown_commands()) > 12


@pytest.fixture(scope="module")
def bigger_project(reader: Reader) -> Reader:
    """The project, with all that the commands name, and with a worker that knows it."""
    if reader.worker is not None:
        with (reader.home / "proj" / "settings.py").open("a") as settings:
            settings.write(MORE)
        run("python manage.py migrate --database orders", reader.home, reader.env)
        reader.worker.stop(60)
        reader.start_worker()
        wait_for(lambda: "relaying orders" in reader.log.read_text(), 60, reader.log.read_text)
    return reader


@pytest.mark.parametrize(("command", "page"), shown_commands())
def test_commands_of_other_pages_work_in_that_project(
    bigger_project: Reader, command: str, page: str
) -> None:
    reader = bigger_project
    if reader.worker is None:
        pytest.skip("needs the tutorial's project: run the whole module")
    if "--watch" in command:
        command = f"timeout --preserve-status --signal INT 5 {command}"
    wait_for(lambda: run_unless_torn(command, reader))


def run_unless_torn(command: str, reader: Reader) -> bool:
    """False if kombu's filesystem transport read a file of its own that was half written."""
    try:
        run(command, reader.home, reader.env)
    except AssertionError as error:
        if "Expecting value: line 1 column 1" not in str(error):
            raise
        return False
    return True
