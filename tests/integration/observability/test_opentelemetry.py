"""OpenTelemetry with its real instrumentations: a span per batch, and none of its statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sentry_sdk
from django.db import connection, transaction
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.instrumentation.psycopg import PsycopgInstrumentor
from opentelemetry.instrumentation.redis import RedisInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from celery_outbox_steps.publishers import publisher_for
from celery_outbox_steps.testing import RecordingPublisher
from django_integration.signals import outbox_message_sent
from tests.harness.databases import redis_url
from tests.helpers import wait_for
from tests.integration.observability.running import count_claims, run_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.observability.conftest import Envelopes

pytestmark = [pytest.mark.postgresql, pytest.mark.usefixtures("postgresql")]


class Telemetry:
    """What would be exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def request(self) -> Any:
        return self.provider.get_tracer("tests").start_as_current_span("request")

    @property
    def spans(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    @property
    def traces(self) -> set[int]:
        return {span.context.trace_id for span in self.spans}


@pytest.fixture
def telemetry(postgresql: None) -> Iterator[Telemetry]:
    """Database, Redis and Celery instrumented, as in a worker under `opentelemetry-instrument`."""
    telemetry = Telemetry()
    instrumentors: list[Any] = [PsycopgInstrumentor(), RedisInstrumentor(), CeleryInstrumentor()]
    connection.close()  # the next one is an instrumented one
    for each in instrumentors:
        each.instrument(tracer_provider=telemetry.provider, skip_dep_check=True)
    yield telemetry
    for each in instrumentors:
        each.uninstrument()
    connection.close()


def test_an_idle_relay_makes_no_spans(
    app: Any, watch: Callable[..., Any], telemetry: Telemetry
) -> None:
    looks = count_claims(watch(app))
    wait_for(lambda: looks() >= 5)
    assert telemetry.names == []


@pytest.mark.redis
def test_a_busy_relay_makes_no_spans_of_its_own(
    make_app: Callable[..., Any], watch: Callable[..., Any], telemetry: Telemetry
) -> None:
    app = make_app(redis_url(), task_default_queue="outbox-opentelemetry")
    with telemetry.request(), transaction.atomic():
        for _ in range(5):
            app.send_task("shop.ship_order")
    called = telemetry.names
    relay = watch(app, publisher_factory=publisher_for, config={"batch_size": 2})
    relay.counted("published", 5)
    assert telemetry.names == called
    assert len(telemetry.traces) == 1
    _forget_queue(app)


def test_one_trace_from_the_request_to_the_task(
    app: Any, watch: Callable[..., Any], telemetry: Telemetry
) -> None:
    with telemetry.request(), transaction.atomic():
        app.tasks["shop.ship_order"].delay()
    relay = watch(app)
    relay.counted("published", 1)
    (message,) = relay.publisher.published
    run_task(app, message)
    assert {"request", "apply_async/shop.ship_order", "run/shop.ship_order"} <= set(telemetry.names)
    assert len(telemetry.traces) == 1


@pytest.fixture
def is_global(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider is the one of the process, which the relay uses."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", telemetry.provider)


@pytest.mark.redis
@pytest.mark.usefixtures("is_global")
def test_each_batch_is_one_span_that_links_to_its_callers(
    make_app: Callable[..., Any], watch: Callable[..., Any], telemetry: Telemetry
) -> None:
    app = make_app(redis_url(), task_default_queue="outbox-opentelemetry")
    for _ in range(2):
        with telemetry.request(), transaction.atomic():
            app.tasks["shop.ship_order"].delay()
    called = telemetry.names
    relay = watch(app, publisher_factory=publisher_for, config={"batch_size": 2})
    relay.counted("published", 2)
    wait_for(lambda: len(telemetry.spans) > len(called))
    (batch,) = telemetry.spans[len(called) :]
    assert batch.name == "send outbox-opentelemetry"
    assert batch.attributes["messaging.system"] == "redis"
    assert batch.attributes["messaging.batch.message_count"] == 2
    assert [link.context.span_id for link in batch.links] == [
        call.context.span_id for call in telemetry.named("apply_async/shop.ship_order")
    ]
    assert batch.parent is None
    _forget_queue(app)


@pytest.mark.usefixtures("is_global")
def test_an_idle_relay_makes_no_span_of_a_batch(
    app: Any, watch: Callable[..., Any], telemetry: Telemetry
) -> None:
    looks = count_claims(watch(app))
    wait_for(lambda: looks() >= 5)
    assert telemetry.names == []


@pytest.mark.usefixtures("is_global")
def test_an_outage_is_an_error_of_the_batchs_span(
    app: Any, watch: Callable[..., Any], telemetry: Telemetry
) -> None:
    publisher = RecordingPublisher()
    publisher.down = ConnectionRefusedError("no broker")
    with transaction.atomic():
        app.send_task("shop.ship_order")
    called = telemetry.names
    watch(app, publisher_factory=lambda *_: publisher)
    wait_for(lambda: len(telemetry.spans) > len(called))
    batch = telemetry.spans[len(called)]
    assert batch.attributes["error.type"] == "ConnectionRefusedError"
    assert batch.status.status_code is StatusCode.ERROR


@pytest.mark.usefixtures("is_global")
def test_with_links_in_place_of_parents_the_task_has_its_own_trace_with_a_link_to_the_call(
    app: Any, watch: Callable[..., Any], telemetry: Telemetry
) -> None:
    CeleryInstrumentor().uninstrument()
    options = dict.fromkeys(("use_links", "use_span_links"), True)  # its name in old and new ones
    CeleryInstrumentor().instrument(tracer_provider=telemetry.provider, **options)
    with telemetry.request(), transaction.atomic():
        app.tasks["shop.ship_order"].delay()
    relay = watch(app)
    relay.counted("published", 1)
    (message,) = relay.publisher.published
    run_task(app, message)
    (call,) = telemetry.named("apply_async/shop.ship_order")
    (task,) = telemetry.named("run/shop.ship_order")
    assert [link.context.span_id for link in task.links] == [call.context.span_id]
    assert task.context.trace_id != call.context.trace_id


@pytest.mark.usefixtures("is_global")
def test_opentelemetry_and_sentry_have_a_whole_trace_each(
    app: Any,
    watch: Callable[..., Any],
    telemetry: Telemetry,
    make_sentry: Callable[..., Envelopes],
) -> None:
    sentry = make_sentry()
    with (
        telemetry.request(),
        sentry_sdk.start_transaction(name="request") as request,
        transaction.atomic(),
    ):
        app.tasks["shop.ship_order"].delay()
    relay = watch(app)
    relay.counted("published", 1)
    (message,) = relay.publisher.published
    run_task(app, message)
    (call,) = telemetry.named("apply_async/shop.ship_order")
    (task,) = telemetry.named("run/shop.ship_order")
    (batch,) = telemetry.named("send celery")
    assert task.context.trace_id == call.context.trace_id == batch.links[0].context.trace_id
    names = {each["transaction"] for each in sentry.transactions}
    assert names == {"request", "celery_outbox.relay", "shop.ship_order"}
    assert {each["contexts"]["trace"]["trace_id"] for each in sentry.transactions} == {
        request.trace_id
    }


def test_receivers_of_the_relays_signals_are_traced_as_before(
    app: Any, watch: Callable[..., Any], telemetry: Telemetry
) -> None:
    def receiver(**_: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("VALUES (1)")

    outbox_message_sent.connect(receiver)
    try:
        with transaction.atomic():
            app.send_task("shop.ship_order")
        watch(app).counted("published", 1)
        wait_for(lambda: "VALUES" in telemetry.names, message=lambda: str(telemetry.names))
    finally:
        outbox_message_sent.disconnect(receiver)


def _forget_queue(app: Any) -> None:
    with app.connection_for_write() as broker:
        broker.default_channel.queue_delete(app.conf.task_default_queue)
