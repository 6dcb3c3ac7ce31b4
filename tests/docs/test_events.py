"""The consumers in examples/events: every event is worked on once, also if it comes twice.

A shop publishes through a worker with a relay; consumers with kombu, pika, FastStream and Celery
read from a private RabbitMQ, because the examples use fixed names.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from kombu import Connection, Queue

from tests.docs.pages import DOCS, ROOT, blocks
from tests.docs.processes import clean_environment, run, running
from tests.helpers import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.harness.servers import PrivateServer

EXAMPLES = ROOT / "examples" / "events"
PAGE = DOCS / "how-to" / "consume-events.md"
PLAIN = ("kombu", "pika", "faststream")
"""Consumers that are a process of their own."""
WORKER = "-m celery -A {} worker --pool solo --loglevel INFO --without-gossip --without-mingle"
pytestmark = [pytest.mark.timeout(300)]


class Stage:
    """The shop, its four consumers and their logs."""

    def __init__(self, url: str, home: Path) -> None:
        self.url, self.home = url, home
        self.env = clean_environment(
            PYTHONPATH=f"{ROOT}:{EXAMPLES}", EVENTS_URL=url, SHOP_HOME=str(home), C_FORCE_ROOT="1"
        )

    def start(self, processes: ExitStack) -> None:
        for name in ("shop", "with_celery"):
            run(f"{sys.executable} {EXAMPLES / name}.py migrate", self.home, self.env)
        commands = {name: str(EXAMPLES / f"with_{name}.py") for name in PLAIN}
        commands["celery"] = WORKER.format("with_celery")
        commands["shop"] = f"{WORKER.format('shop')} --outbox-relay"
        for name, command in commands.items():
            line = f"exec {sys.executable} {command}"
            processes.enter_context(running(line, self.home, self.env, self.home / f"{name}.log"))
        for name in (*PLAIN, "celery"):
            wait_for(lambda name=name: self.is_consumed(f"shipping.{name}"), 60, self.logs)

    def is_consumed(self, queue: str) -> bool:
        with Connection(self.url) as connection:
            try:
                return Queue(queue)(connection).queue_declare(passive=True).consumer_count > 0
            except connection.channel_errors:
                return False

    def order(self, *numbers: int) -> list[str]:
        """Place orders. Returns the ids of their events."""
        command = [sys.executable, str(EXAMPLES / "shop.py"), "order", *map(str, numbers)]
        return run(command, self.home, self.env).split()

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text()

    def logs(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in self.home.glob("*.log"))

    def sees(self, name: str, text: str, times: int = 1) -> None:
        wait_for(lambda: self.log(name).count(text) >= times, 30, self.logs)

    def send(self, event_id: str, body: str) -> None:
        """What a relay that died before it could settle would send again."""
        with Connection(self.url) as connection:
            connection.Producer().publish(
                body, exchange="domain", routing_key="order.placed", message_id=event_id,
                content_type="application/json", content_encoding="utf-8",
                headers={"cloudEvents_source": "/shop", "cloudEvents_id": event_id},
            )  # fmt: skip


@pytest.fixture(scope="module")
def stage(rabbitmq: PrivateServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    url = f"{rabbitmq.service.url.rstrip('/')}/%2F"
    with ExitStack() as processes:
        stage = Stage(url, tmp_path_factory.mktemp("events"))
        stage.start(processes)
        yield stage


def test_every_consumer_gets_every_event_and_the_other_installation_its_tasks(stage: Stage) -> None:
    stage.order(1, 2, 3)
    for name in (*PLAIN, "celery"):
        for number in (1, 2, 3):
            stage.sees(name, f"order {number} is packed")
    for number in (1, 2, 3):
        stage.sees("celery", f"label for order {number}")


def test_an_event_that_comes_again_is_recognised_by_its_id(stage: Stage) -> None:
    (event_id,) = stage.order(7)
    stage.send(event_id, json.dumps({"number": 7, "items": ["lamp"]}))
    for name in PLAIN:
        stage.sees(name, "order 7 came again")
        assert stage.log(name).count("order 7 is packed") == 1
    stage.sees("celery", f"Task shipping.pack[{event_id}] succeeded", times=2)
    assert stage.log("celery").count("order 7 is packed") == 1


def test_what_is_no_event_stops_no_consumer(stage: Stage) -> None:
    stage.send("bad", "no JSON")
    stage.order(8)
    for name in (*PLAIN, "celery"):
        stage.sees(name, "order 8 is packed")


def test_the_page_shows_the_files() -> None:
    """Without their docstrings."""
    shown = {each.file: each.text for each in blocks(PAGE) if each.file}
    files = {path.name: path.read_text() for path in EXAMPLES.glob("*.py")}
    del files["shop.py"]
    assert shown == {name: text.split('\n"""\n\n', 1)[1] for name, text in files.items()}


def test_the_other_blocks_of_the_page_run() -> None:
    for block in blocks(PAGE):
        if block.file is None:
            exec(compile(block.text, str(PAGE), "exec"), {"__name__": "page"})
