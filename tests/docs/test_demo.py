"""`make demo` tells only what it saw: it succeeds, and fails when a part is broken on purpose."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from tests.docs.pages import ROOT
from tests.docs.processes import clean_environment, running
from tests.helpers import require_service, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHOP = ROOT / "examples" / "shop"
ACTS = ["An order commits", "An order rolls back", "The broker goes away", "A worker is killed"]
pytestmark = pytest.mark.timeout(400)


def play(timeout: float = 350, **environment: str) -> tuple[int, str]:
    env = clean_environment(PYTHONPATH=str(ROOT), **environment)
    done = subprocess.run(
        [sys.executable, "-m", "demo"],
        cwd=SHOP,
        env=env,
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def assert_all_was_seen(status: int, said: str) -> None:
    assert status == 0, said
    assert "✗" not in said
    for act in ACTS:
        assert act in said
    assert said.count("✓") == int(re.findall(r"(\d+) claims, all observed", said)[0])


def test_without_any_server() -> None:
    assert_all_was_seen(*play())


@pytest.mark.parametrize(
    ("part", "unseen", "patience"),
    [
        ("relay", "its task ran", "12"),
        ("outbox", "wrote a row next to the order", "12"),
        ("lease", "another worker took over", "25"),
    ],
)
def test_a_broken_part_is_noticed(part: str, unseen: str, patience: str) -> None:
    status, said = play(DEMO_BREAK=part, DEMO_PATIENCE=patience)
    assert status == 1
    failed = [line for line in said.splitlines() if "✗" in line]
    assert len(failed) == 1
    assert unseen in failed[0]


@pytest.fixture
def postgres_url() -> Iterator[str]:
    psycopg = pytest.importorskip("psycopg")
    server = require_service("postgres")
    name, where = f"shop_{uuid.uuid4().hex[:8]}", {"host": server.host, "port": server.port}
    user = os.environ.get("PGUSER", "postgres")
    with psycopg.connect(user=user, autocommit=True, **where) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        yield f"postgres://{user}@{server.host}:{server.port}/{name}"
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.postgresql
@pytest.mark.rabbitmq
def test_on_postgresql_and_rabbitmq(postgres_url: str) -> None:
    broker = require_service("rabbitmq")
    assert_all_was_seen(*play(DATABASE_URL=postgres_url, BROKER_URL=broker.url))


class Browser:
    """Just enough of one: cookies, forms, and pages as text."""

    def __init__(self, address: str) -> None:
        self._base = f"http://{address}"
        self._opener = build_opener(HTTPCookieProcessor())

    def get(self, path: str) -> str:
        with self._opener.open(self._base + path, timeout=20) as response:
            return response.read().decode()

    def post(self, page: str, path: str, **fields: str) -> str:
        token = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', self.get(page))[0]
        data = urlencode({"csrfmiddlewaretoken": token, **fields}).encode()
        with self._opener.open(self._base + path, data, timeout=20) as response:
            return response.read().decode()

    def answers(self) -> bool:
        try:
            return "Shop" in self.get("/")
        except (URLError, ConnectionError):
            return False


def test_the_shop_in_the_browser(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    env = clean_environment(PYTHONPATH=str(ROOT), SHOP_ADDRESS=address)
    with running([sys.executable, "-m", "demo.web"], SHOP, env, tmp_path / "web.log") as log:
        browser = Browser(address)
        wait_for(browser.answers, 120, log.read_text, pause=0.2)
        assert "were committed together" in browser.post("/", "/order")
        assert "was rolled back" in browser.post("/", "/order-that-fails")
        wait_for(lambda: "written at" in browser.get("/"), 60, lambda: browser.get("/"), pause=0.2)
        login = "/admin/login/?next=/admin/"
        home = browser.post(login, login, username="admin", password="admin")
        assert "Celery outbox" in home
        outbox, dead = (f"/admin/celery_outbox/celeryoutbox{name}/" for name in ("", "deadletter"))
        assert "kept for the retention time" in browser.get(outbox)

        def shows(page: str, text: str) -> None:
            wait_for(lambda: text in browser.get(page), 60, log.read_text, pause=0.2)

        for name, page, text in (
            ("later", f"{outbox}?state=scheduled", "orders.tasks.send_receipt"),
            ("fail", f"{dead}?kind=task", "insufficient funds"),
            ("bad", f"{outbox}?state=failing", "File name too long"),
            ("break", outbox, "The broker"),
            ("mend", outbox, "Healthy"),
            ("pause", outbox, "a button in the shop"),
            ("resume", outbox, "Healthy"),
        ):
            browser.post("/", f"/press/{name}")
            if name == "break":
                browser.post("/", "/order")
            shows(page, text)
