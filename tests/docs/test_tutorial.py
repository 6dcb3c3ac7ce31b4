"""The tutorial from its first command to its last, in an empty directory.

The commands that other pages show are then run in the same project, while its worker runs.
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
pytestmark = pytest.mark.timeout(600)


class Reader:
    """A reader who follows the tutorial: writes its files, types its commands."""

    def __init__(self, home: Path, env: dict[str, str]) -> None:
        self.home = home
        self.env = with_programs_of(home / ".venv", env)
        self.log = home / "worker.log"
        self.worker: LocalProcess | None = None
        self._worker_command = ""

    def follow(self, block: Block) -> str:
        if block.language == "python":
            self._write(block)
            return ""
        if "worker" in block.text:
            (self._worker_command,) = shell_lines([block])
            self.start_worker()
            return ""
        return run(block.text, self.home, self.env, timeout=300)

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


@pytest.fixture(scope="module")
def reader(
    tmp_path_factory: pytest.TempPathFactory, wheel_environment: dict[str, str]
) -> Iterator[Reader]:
    reader = Reader(tmp_path_factory.mktemp("tutorial"), wheel_environment)
    yield reader
    reader.kill_worker()


def test_the_tutorial(reader: Reader) -> None:
    *up_to_worker, inspecting, last_order = blocks(TUTORIAL)
    said = [reader.follow(block) for block in up_to_worker]
    waiting = [re.search(r"waiting +(\d+)", text) for text in said]
    assert [found[1] for found in waiting if found] == ["1", "1"]
    reader.sees("receipt for A-1")
    assert "relaying" in wait_for(lambda: reader.follow(inspecting), 60)
    reader.kill_worker()
    reader.follow(last_order)
    reader.start_worker()
    reader.sees("receipt for A-3")
    assert "receipt for A-2" not in reader.log.read_text()


def shown_commands() -> list[tuple[str, str]]:
    found = {}
    for page in pages():
        for command in COMMAND.findall(page.read_text()):
            found.setdefault(command.strip(), name(page))
    return sorted(found.items())


def test_there_are_commands() -> None:
    assert len(shown_commands()) > 12


@pytest.mark.parametrize(("command", "page"), shown_commands())
def test_commands_of_other_pages_work_in_that_project(
    reader: Reader, command: str, page: str
) -> None:
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
