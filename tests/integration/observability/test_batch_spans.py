"""The span of a published batch: what it says, what it links to, and when there is none."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from celery_outbox_steps.messages import ClaimedMessage, Message
from celery_outbox_steps.observe.recorders import recorders_for
from celery_outbox_steps.observe.recorders.opentelemetry import MOST_LINKS
from celery_outbox_steps.relay.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

ROW = ClaimedMessage(1, "id", "task", "[]", "{}", "{}", None, 0, 1, None, None, None, None, 0.0)


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    """The spans so far, in a process whose project has set up OpenTelemetry."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return lambda: list(exporter.get_finished_spans())


def batch_of(count: int) -> Batch:
    rows = [ROW._replace(id=number) for number in range(count)]
    return Batch(rows, 0.0, 15.0, full=False)


def caller(number: int) -> dict[str, str]:
    """The headers that OpenTelemetry's Celery instrumentation writes."""
    return {"traceparent": f"00-{number + 1:032x}-{number + 1:016x}-01", "tracestate": "vendor=1"}


def publish(
    *headers: dict[str, Any],
    broker: str = "amqp://",
    route: tuple[str, str] = ("", "celery"),
    outage: str = "",
    routes: tuple[tuple[str, str], ...] = (),
) -> Batch:
    """Publish messages with these headers in one batch."""
    app = Celery("spans", broker=broker, set_as_current=False)
    batch = batch_of(len(headers))
    with recorders_for(app).publishing(batch):
        for each, (exchange, key) in zip(headers, routes or [route] * len(headers), strict=True):
            message = Message(b"", "", "", each, {}, None, exchange, key)
            for watch in batch.watchers:
                watch(message)
        batch.outage = outage
    return batch


def test_a_batch_is_one_producer_span_with_the_attributes_of_messaging(
    exported: Callable[[], list[Any]],
) -> None:
    publish({}, {}, {})
    (span,) = exported()
    assert (span.name, span.kind, span.parent) == ("send celery", SpanKind.PRODUCER, None)
    assert dict(span.attributes) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": 3,
        "messaging.destination.name": "celery",
        "messaging.rabbitmq.destination.routing_key": "celery",
    }
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("broker", "route", "system", "destination"),
    [
        ("amqp://", ("shop", "orders"), "rabbitmq", "shop:orders"),
        ("amqp://", ("shop", ""), "rabbitmq", "shop"),
        ("amqp://", ("", ""), "rabbitmq", "amq.default"),
        ("redis://", ("shop", "orders"), "redis", "orders"),
        ("memory://", ("shop", ""), "memory", "shop"),
    ],
)
def test_system_and_destination_have_the_names_that_opentelemetry_gives_them(
    exported: Callable[[], list[Any]],
    broker: str,
    route: tuple[str, str],
    system: str,
    destination: str,
) -> None:
    publish({}, broker=broker, route=route)
    (span,) = exported()
    assert span.attributes["messaging.system"] == system
    assert span.attributes["messaging.destination.name"] == destination
    assert span.name == f"send {destination}"


def test_messages_for_several_destinations_have_no_destination_in_common(
    exported: Callable[[], list[Any]],
) -> None:
    publish({}, {}, routes=(("", "a"), ("", "b")))
    (span,) = exported()
    assert span.name == "send"
    assert "messaging.destination.name" not in span.attributes


def test_the_span_links_to_each_callers_span_once_and_to_none_without_a_caller(
    exported: Callable[[], list[Any]],
) -> None:
    publish(caller(1), {}, caller(2), caller(1))
    (span,) = exported()
    assert [(link.context.trace_id, link.context.span_id) for link in span.links] == [
        (2, 2),
        (3, 3),
    ]
    assert span.links[0].context.trace_state.to_header() == "vendor=1"
    assert span.context.trace_id not in (2, 3)


def test_there_are_at_most_128_links_and_no_other_header_is_parsed(
    exported: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parsed = []
    extract = TraceContextTextMapPropagator.extract

    def counted(self: Any, carrier: Any, *args: Any, **options: Any) -> Any:
        parsed.append(carrier)
        return extract(self, carrier, *args, **options)

    monkeypatch.setattr(TraceContextTextMapPropagator, "extract", counted)
    publish(*map(caller, range(500)))
    (span,) = exported()
    assert len(span.links) == len(parsed) == MOST_LINKS == 128


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": 5},
        {"traceparent": "00-zz-1-01"},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
        {"traceparent": caller(1)["traceparent"], "tracestate": "x" * 10_000},
    ],
    ids=["number", "text", "zeros", "long state"],
)
def test_headers_that_are_no_trace_stop_no_message(
    exported: Callable[[], list[Any]], headers: dict[str, Any]
) -> None:
    publish(headers, caller(7))
    (span,) = exported()
    assert 8 in {link.context.trace_id for link in span.links}


def test_an_outage_is_the_spans_error(exported: Callable[[], list[Any]]) -> None:
    publish({}, outage="ConnectionRefusedError: [Errno 111] Connection refused")
    publish({}, outage="every connection of the app's pool is in use")
    refused, no_class = exported()
    assert refused.attributes["error.type"] == "ConnectionRefusedError"
    assert refused.status.status_code is StatusCode.ERROR
    assert refused.status.description == "ConnectionRefusedError: [Errno 111] Connection refused"
    assert no_class.attributes["error.type"] == "_OTHER"


def test_an_error_of_the_relay_is_named_without_its_text(
    exported: Callable[[], list[Any]],
) -> None:
    app = Celery("spans", broker="amqp://", set_as_current=False)
    with pytest.raises(LookupError), recorders_for(app).publishing(batch_of(1)):
        raise LookupError("secret")
    (span,) = exported()
    assert span.attributes["error.type"] == "LookupError"
    assert "secret" not in span.to_json()


@pytest.mark.parametrize(
    "provider", [None, TracerProvider(sampler=ALWAYS_OFF)], ids=["none", "not sampled"]
)
def test_a_batch_whose_span_is_not_recorded_has_no_watchers(
    monkeypatch: pytest.MonkeyPatch, provider: Any
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    assert publish(caller(1)).watchers == []


def test_a_process_without_opentelemetry_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    app: Any = SimpleNamespace(conf={})  # no broker, which the span would ask for
    batch = batch_of(1)
    with recorders_for(app).publishing(batch):
        assert batch.watchers == []
