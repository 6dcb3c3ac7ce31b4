"""DogStatsD for real: a UDP socket receives what a batch through RabbitMQ produces."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from django.db import transaction
from kombu import Connection

from celery_outbox_steps import OutboxRelayStep
from celery_outbox_steps.errors import Nacked
from celery_outbox_steps.observe.metrics import ROW_STATES
from celery_outbox_steps.publishers import publisher_for
from tests import helpers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.observability.conftest import UdpListener

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]


@pytest.fixture
def agent(udp: UdpListener, settings: Any) -> UdpListener:
    settings.MONITORING_STATSD_HOST = "127.0.0.1"
    settings.MONITORING_STATSD_PORT = udp.port
    settings.MONITORING_STATSD_TAGS = {"service": "shop", "env": "test"}
    return udp


@pytest.fixture
def queue() -> Iterator[str]:
    name = f"outbox-test-{uuid.uuid4().hex[:8]}"
    yield name
    with Connection(helpers.require_service("rabbitmq").url) as connection:
        connection.default_channel.queue_delete(name)


@pytest.mark.rabbitmq
def test_a_real_batch_reaches_the_agent(
    make_app: Callable[..., Any], watch: Callable[..., Any], agent: UdpListener, queue: str
) -> None:
    app = make_app(
        helpers.require_service("rabbitmq").url,
        outbox_metrics="datadog",
        task_default_queue=queue,
    )
    with transaction.atomic(), app.outbox_bulk():
        for number in range(20):
            app.send_task("shop.ship_order", [number])
    relay = watch(app, publisher_factory=publisher_for)
    relay.counted("published", 20)

    tags = {"service:shop", "env:test", "database:default"}
    enqueued = agent.wait_for("celery_outbox.messages.enqueued")
    assert _parsed(enqueued) == ("20", "c", tags | {"task_name:shop.ship_order"})
    published = agent.wait_for("celery_outbox.messages.published")
    assert _parsed(published) == ("20", "c", tags | {"task_name:shop.ship_order"})
    assert _parsed(agent.wait_for("celery_outbox.batch.size")) == ("20", "g", tags)
    for timing in ("batch.duration_ms", "publish.latency_ms", "publish.latency_max_ms"):
        value, kind, found = _parsed(agent.wait_for(f"celery_outbox.{timing}"))
        assert float(value) > 0
        assert (kind, found) == ("ms", tags)
    gauges = "queue.depth", "dead_letter.count", "oldest_pending_age_seconds"
    for gauge in (*gauges, "oldest_due_age_seconds"):
        value, kind, found = _parsed(agent.wait_for(f"celery_outbox.{gauge}"))
        assert float(value) >= 0
        assert (kind, found) == ("g", tags)
    for line in agent.named("celery_outbox.rows"):
        assert _parsed(line)[2] - tags <= {f"state:{state}" for state in ROW_STATES}
    assert len(agent.named("celery_outbox.rows")) == len(ROW_STATES)
    # One packet for each metric: the 20 messages have none of their own.
    assert len(agent.named("celery_outbox.messages.published")) == 1
    assert len(agent.packets) <= 15


def test_failures_dead_letters_and_deferred_messages_are_counted(
    make_app: Callable[..., Any], watch: Callable[..., Any], agent: UdpListener
) -> None:
    app = make_app(outbox_metrics="datadog")
    with transaction.atomic():
        for name in ("shop.again", "shop.never"):
            app.send_task(name)
    relay = _relay_of(watch, app, {"shop.again": Nacked("full"), "shop.never": ValueError("huge")})
    relay.counted("dead", 1)
    assert "1|c" in agent.wait_for("celery_outbox.messages.failed")
    assert "task_name:shop.never" in agent.wait_for("celery_outbox.messages.exceeded")

    relay.publisher.down = ConnectionRefusedError("no broker")
    with transaction.atomic():
        app.send_task("shop.later")
    assert "task_name:shop.later" in agent.wait_for("celery_outbox.messages.deferred")


def test_a_transaction_counts_its_calls_once(
    make_app: Callable[..., Any], agent: UdpListener
) -> None:
    app = make_app(outbox_metrics="datadog")
    with transaction.atomic():
        for _ in range(5):
            app.send_task("shop.ship_order")
    assert agent.wait_for("celery_outbox.messages.enqueued").startswith(
        "celery_outbox.messages.enqueued:5|c"
    )
    assert len(agent.named("celery_outbox.messages.enqueued")) == 1


def test_what_is_rolled_back_is_not_counted(
    make_app: Callable[..., Any], agent: UdpListener
) -> None:
    app = make_app(outbox_metrics="datadog")
    with transaction.atomic():
        app.send_task("shop.kept")
        try:
            with transaction.atomic():
                app.send_task("shop.lost")
                raise LookupError
        except LookupError:
            pass
    agent.wait_for("celery_outbox.messages.enqueued")
    assert "shop.lost" not in "".join(agent.packets)
    assert "shop.kept" in "".join(agent.packets)


def test_an_agent_that_is_away_hurts_nobody(
    make_app: Callable[..., Any], watch: Callable[..., Any], settings: Any
) -> None:
    settings.MONITORING_STATSD_HOST = "host.invalid"
    app = make_app(outbox_metrics="datadog")
    with transaction.atomic():
        app.send_task("shop.ship_order")
    watch(app).counted("published", 1)


def test_the_old_names_switch_metrics_on_and_off(
    make_app: Callable[..., Any], settings: Any
) -> None:
    from celery_outbox_steps.observe.metrics import meter_for

    settings.MONITORING_METRICS_ENABLED = True
    assert meter_for(make_app()) is not None
    settings.MONITORING_METRICS_ENABLED = False
    assert meter_for(make_app()) is None
    assert meter_for(make_app(outbox_metrics="datadog")) is None
    del settings.MONITORING_METRICS_ENABLED
    assert meter_for(make_app()) is None


def _relay_of(watch: Callable[..., Any], app: Any, errors: dict[str, Exception]) -> Any:
    from celery_outbox_steps.testing import RecordingPublisher

    publisher = RecordingPublisher()
    for name, error in errors.items():
        publisher.fail_task(name, error)
    relay = watch(app, publisher_factory=lambda *_: publisher)
    relay.publisher = publisher
    return relay


def _parsed(line: str) -> tuple[str, str, set[str]]:
    """Value, kind and tags of `name:value|kind|#tag,tag`."""
    value, kind, tags, *_ = line.partition(":")[2].split("|")
    return value, kind, set(tags.removeprefix("#").split(","))


def test_the_relay_of_a_plain_celery_app_finds_the_agent(agent: UdpListener) -> None:
    app = Celery("plain", broker="memory://", set_as_current=False)
    app.conf.outbox_metrics = "datadog"
    worker = SimpleNamespace(app=app, pool_cls=None, hostname="celery@test")
    relays = OutboxRelayStep(worker).create(worker)
    relays.start()
    try:
        agent.wait_for("celery_outbox.queue.depth")
    finally:
        relays.stop(5)
