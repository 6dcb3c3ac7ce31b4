"""The page "Brokers where you may not declare", on a private RabbitMQ that has its definitions.

The project has the settings of the page, its worker the command of the page, and the users may
configure nothing.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection

from tests.docs.pages import DOCS, blocks
from tests.docs.projects import Project
from tests.helpers import require_program, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.servers import PrivateServer

PAGE = DOCS / "how-to" / "pre-provisioned-brokers.md"
DEFINITIONS = DOCS / "files" / "rabbitmq-definitions.json"
ONE_THAT_DECLARES = """
CELERY_OUTBOX_DESTINATIONS["declares"] = {
    **CELERY_OUTBOX_DESTINATIONS["events"], "declare": True, "max_retries": 1
}
"""
TASK = """

@app.task
def add(x, y):
    print(f"the sum is {x + y}", flush=True)
"""
CALL = """
from django.db import transaction
from proj.celery import add, app
with transaction.atomic():
    add.delay(2, 3)
    app.outbox.publish("order.placed", {"number": 7}, to=["events", "declares"])
"""
pytestmark = pytest.mark.timeout(180)


def page_blocks(language: str) -> list[str]:
    return [block.text for block in blocks(PAGE) if block.language == language]


@pytest.fixture(scope="module")
def address(rabbitmq: PrivateServer) -> str:
    """Host and port of a RabbitMQ with the definitions of the page."""
    require_program("rabbitmqctl")
    process = rabbitmq.container._container
    cookie = (Path(process.env["HOME"]) / ".erlang.cookie").read_text()
    with DEFINITIONS.open() as definitions:
        subprocess.run(
            ["rabbitmqctl", "--erlang-cookie", cookie, "import_definitions"],
            stdin=definitions, cwd=process.cwd, env=process.env, check=True, **process.identity,
        )  # fmt: skip
    address = f"127.0.0.1:{rabbitmq.port}"
    wait_for(lambda: can_log_in(f"amqp://shipping:change-me@{address}/%2F"), 30)
    return address


def can_log_in(url: str) -> bool:
    """The import goes on after the command has ended."""
    with Connection(url) as connection:
        try:
            connection.connect()
        except connection.connection_errors:
            return False
        return True


@pytest.fixture(scope="module")
def log(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The log of a worker that has the page's settings, after a call and an event."""
    settings = page_blocks("python")[0].replace("rabbitmq/", f"{address}/") + ONE_THAT_DECLARES
    project = Project(tmp_path_factory.mktemp("project"), settings, TASK)
    (worker,) = [line.strip() for line in PAGE.read_text().splitlines() if "-A proj worker" in line]
    with project.worker(worker) as log:
        project.python(CALL)
        yield log


def test_tasks_and_events_get_through(log: Path, address: str) -> None:
    wait_for(lambda: "the sum is 5" in log.read_text(), 30, log.read_text)
    namespace: dict[str, Any] = {}
    exec(page_blocks("python")[1], namespace)
    found = []

    def on_event(message: Any) -> None:
        found.append(message.decode())
        message.ack()

    namespace["read"](f"amqp://shipping:change-me@{address}/%2F", on_event)
    assert found == [{"number": 7}]


def test_one_that_declares_fails_with_the_words_of_the_page(log: Path) -> None:
    (said,) = page_blocks("text")
    words = " ".join(said.split())
    wait_for(lambda: words in " ".join(log.read_text().split()), 30, log.read_text)
    assert log.read_text().count("celery_outbox_dead_letter") == 1
