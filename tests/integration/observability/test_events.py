"""Events, seen from outside: the caller's trace and context, a destination's numbers and lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import sentry_sdk
import structlog
from celery.app.trace import build_tracer
from celery.contrib.testing.app import setup_default_app
from django.db import connection, transaction
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from celery_outbox_steps.errors import Nacked
from celery_outbox_steps.observe.log import EVENTS
from celery_outbox_steps.observe.recorders.prometheus import PrometheusSink
from celery_outbox_steps.worker.group import RelayGroup
from django_integration import signals
from django_integration.store import DjangoStore
from tests.helpers import wait_for

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from tests.integration.observability.conftest import Envelopes

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]

DESTINATIONS = {"partner": {"url": "amqp://guest:hunter2@127.0.0.1:1//", "exchange": "domain"}}
SECRET = "4111-1111"


@pytest.fixture
def app(make_app: Callable[..., Any]) -> Any:
    return make_app(outbox_destinations=DESTINATIONS)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Those of a process whose project has set up OpenTelemetry."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


def publish(app: Any, name: str = "order.paid", **options: Any) -> str:
    with transaction.atomic():
        return str(app.outbox.publish(name, {"card": SECRET}, to="partner", **options))


def test_the_callers_span_goes_on_in_the_consumer_and_is_linked_by_the_batch(
    app: Any, watch_destination: Callable[..., Any], spans: InMemorySpanExporter
) -> None:
    with trace.get_tracer("tests").start_as_current_span("request") as request:
        publish(app)
        publish(app)
    relay = watch_destination(app)
    relay.counted("published", 2)
    wait_for(lambda: any(each.links for each in spans.get_finished_spans()))
    caller = request.get_span_context()
    for message in relay.partner.published:
        assert f"{caller.trace_id:032x}-{caller.span_id:016x}" in message.headers["traceparent"]
        assert message.headers["cloudEvents_traceparent"] == message.headers["traceparent"]
    sent = next(each for each in spans.get_finished_spans() if each.links)
    assert [each.context.span_id for each in sent.links] == [caller.span_id]
    assert sent.attributes["messaging.system"] == "rabbitmq"
    assert sent.attributes["messaging.destination.name"] == "domain:order.paid"


def test_sentrys_trace_goes_on_in_the_consumer(
    app: Any, watch_destination: Callable[..., Any], make_sentry: Callable[..., Envelopes]
) -> None:
    make_sentry()
    with sentry_sdk.start_transaction(name="request") as request:
        publish(app)
    relay = watch_destination(app)
    relay.counted("published", 1)
    (message,) = relay.partner.published
    assert message.headers["sentry-trace"].startswith(request.trace_id)
    assert request.trace_id in message.headers["baggage"]
    assert "headers" not in message.headers  # where Celery looks


def test_without_a_tracing_library_and_in_no_task_there_is_no_header_of_ours(
    app: Any, watch_destination: Callable[..., Any]
) -> None:
    publish(app, headers={"tenant": "acme"})
    relay = watch_destination(app)
    relay.counted("published", 1)
    (message,) = relay.partner.published
    attributes = {"specversion", "id", "source", "type", "time"}
    assert message.headers.keys() == {"tenant", *(f"cloudEvents_{each}" for each in attributes)}


def test_an_event_of_a_task_has_its_lineage(make_app: Callable[..., Any]) -> None:
    app = make_app(outbox_destinations=DESTINATIONS, outbox_lineage=True)

    @app.task(name="shop.pay", shared=False)
    def pay() -> None:
        publish(app)

    with setup_default_app(app):
        build_tracer(pay.name, pay, app=app)("an-id", (), {}, {"id": "an-id"})
    publish(app)
    with connection.cursor() as cursor:
        cursor.execute("SELECT options FROM celery_outbox_delivery ORDER BY id")
        of_task, of_request = [json.loads(text).get("headers") for (text,) in cursor.fetchall()]
    assert of_task == {"outbox_lineage": '["an-id"]'}
    assert of_request is None


def test_a_line_about_an_event_names_the_destination_has_the_callers_context_and_no_data(
    app: Any, watch_destination: Callable[..., Any], records: list[logging.LogRecord]
) -> None:
    relay = watch_destination(app, max_retries=1)
    relay.partner.fail_task("order.lost", Nacked("no route"))
    with structlog.contextvars.bound_contextvars(request_id="r-1"):
        found = publish(app, "order.lost", key="order:7")
    relay.counted("dead", 1)
    (line,) = [
        each for each in records if getattr(each, "event", "") == "celery_outbox_dead_letter"
    ]
    assert f"order.lost[{found} for partner]" in line.getMessage()
    assert "later messages of its key wait until it is replayed or discarded: " in line.getMessage()
    fields = vars(line)
    assert (fields["destination"], fields["task_id"]) == ("partner", found)
    assert {*EVENTS["celery_outbox_dead_letter"].fields, "destination"} <= fields.keys()
    text = " ".join(each.getMessage() for each in records if each.name.startswith("celery_outbox"))
    assert SECRET not in text
    assert "hunter2" not in text


def test_an_outage_of_a_destination_is_logged_once_and_so_is_its_end(
    app: Any, watch_destination: Callable[..., Any], records: list[logging.LogRecord]
) -> None:
    relay = watch_destination(app)
    relay.partner.down = ConnectionRefusedError("no partner")
    publish(app)
    relay.counted("deferred", 1)
    relay.partner.heal()
    relay.counted("published", 1)
    lines = [(each.__dict__.get("event"), each.__dict__.get("destination")) for each in records]
    told = [line for line in lines if str(line[0]).endswith(("_unavailable", "_recovered"))]
    assert told == [
        ("celery_outbox_destination_unavailable", "partner"),
        ("celery_outbox_destination_recovered", "partner"),
    ]


def test_signals_name_the_destination(app: Any, watch_destination: Callable[..., Any]) -> None:
    heard: list[tuple[Any, ...]] = []

    def hear(sender: Any, signal: Any, **arguments: Any) -> None:
        name = next(name for name in dir(signals) if getattr(signals, name) is signal)
        heard.append((name, sender, arguments))

    watched = [signals.outbox_message_sent, signals.outbox_message_dead_lettered]
    for signal in watched:
        signal.connect(hear)
    try:
        relay = watch_destination(app, max_retries=1)
        relay.partner.fail_task("order.lost", Nacked("no route"))
        sent, lost = publish(app), publish(app, "order.lost")
        wait_for(lambda: len(heard) == 2)
    finally:
        for signal in watched:
            signal.disconnect(hear)
    to = {"destination": "partner"}
    assert sorted(heard, key=str) == [
        (
            "outbox_message_dead_lettered",
            DjangoStore,
            {"task_ids": [lost], "task_names": ["order.lost"], **to},
        ),
        ("outbox_message_sent", DjangoStore, {"task_id": sent, "task_name": "order.paid", **to}),
    ]


def test_the_series_of_a_destination_have_its_name_and_those_of_tasks_have_none(
    make_app: Callable[..., Any], watch_destination: Callable[..., Any]
) -> None:
    sink = PrometheusSink(CollectorRegistry())
    app = make_app(outbox_destinations=DESTINATIONS, outbox_metrics=lambda app: sink)
    relay = watch_destination(app, sample_interval=0.02)
    relays = RelayGroup([relay.service])
    sink.watch(relays)
    publish(app)
    with transaction.atomic():
        app.tasks["shop.ship_order"].delay()
    relay.counted("published", 1)
    wait_for(lambda: relay.publisher.published)
    own, partner = 'database="default",destination=""', 'database="default",destination="partner"'
    wanted = [
        f'messages_enqueued_total{{{own},task_name="shop.ship_order"}} 1.0',
        f'messages_enqueued_total{{{partner},task_name="order.paid"}} 1.0',
        f'messages_published_total{{{own},task_name="shop.ship_order"}} 1.0',
        f'messages_published_total{{{partner},task_name="order.paid"}} 1.0',
        f'rows{{{own},state="waiting"}} 0.0',
        f'rows{{{partner},state="held_back"}} 0.0',
        f'relay_state{{{partner},state="relaying"}} 1.0',
        f"breaker_open{{{partner}}} 0.0",
        f"publish_lag_seconds_count{{{partner}}} 1.0",
        'broker_up{database="default"} 1.0',
    ]
    wait_for(lambda: all(f"celery_outbox_{each}" in sink.page().body.decode() for each in wanted))
    assert f'rows{{{own},state="held_back"}}' not in sink.page().body.decode()
