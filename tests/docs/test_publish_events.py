"""The page "Publish events": its settings in a project, its message, and its table of options."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from kombu import Connection, Exchange, Queue
from redis import Redis

from celery_outbox_steps.destinations import OPTIONS, RELAY_OPTIONS, Destination
from celery_outbox_steps.publishers.broker import HEADER_PREFIXES, OTHER_PREFIX
from celery_outbox_steps.settings import BY_NAME
from tests.docs.pages import DOCS, blocks
from tests.docs.projects import Project
from tests.harness.databases import redis_url
from tests.helpers import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.servers import PrivateServer

PAGE = DOCS / "how-to" / "publish-events.md"
OPTION = re.compile(r"^\| `(\w+)` \| (.+?) \| .+ \|$", re.MULTILINE)
PUBLISH = """
from types import SimpleNamespace
from proj.celery import app
from proj.orders import place
place(SimpleNamespace(pk=7, save=lambda: None))
"""
PUBLISH_DATA = """
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from proj.celery import app

@dataclass
class Order:
    at: datetime
    total: Decimal

at = datetime(2026, 11, 19, 3, 51, 39, 289000, tzinfo=timezone.utc)
app.outbox.publish("order.placed", Order(at, Decimal("9.90")), to="lake")
"""


def python(text: str) -> str:
    """The block of the page that contains this."""
    (found,) = [
        each.text for each in blocks(PAGE) if each.language == "python" and text in each.text
    ]
    return found


def options() -> dict[str, str]:
    """The table of options: names and defaults."""
    section = PAGE.read_text().partition("\n## Options of a destination\n")[2]
    found = dict(OPTION.findall(section.partition("\n## ")[0]))
    return {name: default.strip("`") for name, default in found.items()}


def test_the_table_has_every_option_with_its_default() -> None:
    found = options()
    assert sorted(found) == OPTIONS
    assert found.pop("url") == "required"
    for each in RELAY_OPTIONS:
        assert found.pop(each) == BY_NAME[each].django_name
    defaults = {each.name: each for each in fields(Destination)}
    for name, default in found.items():
        known = defaults[name]
        value = known.default if known.default is not MISSING else known.default_factory()  # type: ignore[misc]
        assert repr(value).replace("'", '"') == default, name


def test_the_table_of_prefixes_is_that_of_the_code() -> None:
    section = PAGE.read_text().partition("\n## The headers\n")[2]
    said = dict(re.findall(r"^\| (\w+) \| `(\S+)` \|$", section, re.MULTILINE))
    prefixes = {"AMQP": HEADER_PREFIXES["amqp"], "Kafka": HEADER_PREFIXES["kafka"]}
    assert said == {**prefixes, "others": OTHER_PREFIX}


@pytest.fixture(scope="module")
def lake() -> Iterator[str]:
    """A queue in Redis."""
    name = f"docs-{uuid4().hex[:8]}"
    yield name
    Redis.from_url(redis_url()).delete(name)


@pytest.fixture(scope="module")
def project(
    rabbitmq: PrivateServer, lake: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    """A project with the settings of the page and another destination, whose worker relays."""
    settings = python("CELERY_OUTBOX_EVENT_SOURCE").replace(
        "guest@localhost", f"guest@127.0.0.1:{rabbitmq.port}"
    )
    settings += f"CELERY_BROKER_URL = {rabbitmq.service.url!r}\n"
    another = {"url": redis_url(), "queue": lake}
    settings += f"CELERY_OUTBOX_DESTINATIONS['lake'] = {another!r}\n"
    project = Project(tmp_path_factory.mktemp("project"), settings)
    (project.home / "proj" / "orders.py").write_text(python("def place(order)"))
    (worker,) = re.findall(r"^    (celery -A proj worker .*)$", PAGE.read_text(), re.MULTILINE)
    with project.worker(worker) as log:
        yield project
        assert "celery_outbox_relay_error" not in log.read_text()


@pytest.mark.redis
def test_the_message_is_the_one_that_the_page_shows(
    project: Project, rabbitmq: PrivateServer
) -> None:
    (shown,) = [each.text for each in blocks(PAGE) if "cloudEvents_id" in each.text]
    with Connection(rabbitmq.service.url) as connection:
        channel = connection.default_channel
        queue = Queue(f"docs-{uuid4().hex[:8]}", Exchange("domain", "topic"), "order.*")(channel)
        queue.declare()
        project.python(PUBLISH)
        message = wait_for(queue.get, 30, (project.home / "worker.log").read_text)
        queue.delete()
    assert varying(as_text(message)) == varying(shown)
    assert shown.count(message.headers["cloudEvents_id"]) == 0  # another one each time
    assert message.headers["cloudEvents_id"] == message.properties["message_id"]


def as_text(message: Any) -> str:
    about = {
        "exchange": message.delivery_info["exchange"],
        "routing key": message.delivery_info["routing_key"],
        "content type": message.content_type,
        "content encoding": message.content_encoding,
        "delivery mode": message.properties["delivery_mode"],
        "message id": message.properties["message_id"],
    }
    lines = [f"{name:16}  {value}" for name, value in about.items()]
    lines += ["", *(f"{name:24}  {value}" for name, value in message.headers.items()), ""]
    return "\n".join([*lines, message.body, ""])


def varying(text: str) -> str:
    """Without what differs from run to run."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "<id>", text)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", "<time>", text)


@pytest.mark.redis
def test_a_message_of_redis_is_opened_as_the_page_says(project: Project, lake: str) -> None:
    project.python(PUBLISH_DATA)
    found: Any = wait_for(lambda: Redis.from_url(redis_url()).rpop(lake), 30)
    namespace: dict[str, Any] = {}
    exec(python("def open_message"), namespace)
    headers, data = namespace["open_message"](found)
    assert headers["ce-type"] == "order.placed"
    assert data == {"at": "2026-11-19T03:51:39.289Z", "total": "9.90"}
    assert all(json.dumps(value) in PAGE.read_text() for value in data.values())


def test_a_destination_that_is_removed_keeps_its_messages_until_it_is_back(
    project: Project, rabbitmq: PrivateServer
) -> None:
    """The worker does not know it either."""
    settings = project.home / "proj" / "settings.py"
    without, partner = settings.read_text(), {"url": rabbitmq.service.url, "queue": "partner"}
    with_it = f"{without}CELERY_OUTBOX_DESTINATIONS['partner'] = {partner!r}\n"
    settings.write_text(with_it)
    project.python("from proj.celery import app; app.outbox.publish('a', 7, to='partner')")
    settings.write_text(without)
    assert "destination partner: not configured any more" in project.celery("outbox status")
    settings.write_text(with_it)
    assert "1 published" in project.celery("outbox drain")
    with Connection(rabbitmq.service.url) as connection:
        message = Queue("partner")(connection.default_channel).get()
    assert message is not None
    assert message.decode() == 7
