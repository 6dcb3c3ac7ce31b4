"""OpenTelemetry: one span per published batch, and none for the relay's own statements.

An idle relay would create a span per statement and second. The callers' traces are in the message
headers already, where OpenTelemetry's own Celery instrumentation wrote them: the batch's span links
to them, and the task continues them as with plain Celery. Nothing here changes a message.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.observe.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery_outbox_steps.messages import Message
    from celery_outbox_steps.observe.recorder import Around, Publishing

MOST_LINKS = 128
"""OpenTelemetry's own limit for the links of a span."""
SEND = "send"
SYSTEMS = {
    "amqp": "rabbitmq",
    "sqs": "aws_sqs",
    "azureservicebus": "servicebus",
    "gcpubsub": "gcp_pubsub",
    "kafka": "kafka",
}
"""The names that OpenTelemetry has for brokers, by kombu's type of driver."""


class OpenTelemetry(Recorder):
    """Suppresses OpenTelemetry's instrumentations if one is loaded."""

    library = "opentelemetry.instrumentation.utils"

    def around_tick(self) -> Around:
        suppressed: Around = sys.modules[self.library].suppress_instrumentation()
        return suppressed


class EventHeaders(Recorder):
    """Puts the caller's trace into events. Tasks get it from OpenTelemetry's Celery package."""

    library = "opentelemetry.trace"

    def on_event(self) -> Mapping[str, str]:
        from opentelemetry.propagate import inject

        headers: dict[str, str] = {}
        inject(headers)
        return headers


class BatchSpans(Recorder):
    """A span of kind PRODUCER around each batch, in processes that have a tracer provider."""

    library = "opentelemetry.trace"

    def __init__(self, broker: Any) -> None:
        self._broker = broker

    def around_publishing(self, batch: Publishing) -> Around:
        """A root span: the callers' spans are its links, since a batch has many callers."""
        trace: Any = sys.modules[self.library]
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return None  # the project has not set up OpenTelemetry in this process
        from opentelemetry.context import Context

        span = trace.get_tracer("celery_outbox_steps").start_span(
            SEND,
            context=Context(),
            kind=trace.SpanKind.PRODUCER,
            attributes={
                "messaging.system": self._system,
                "messaging.operation.name": SEND,
                "messaging.operation.type": SEND,
                "messaging.batch.message_count": len(batch.rows),
            },
        )
        return _around(trace, span, batch, self._system) if span.is_recording() else None

    @cached_property
    def _system(self) -> str:
        driver: str = self._broker.producer_pool.connections.connection.transport.driver_type
        return SYSTEMS.get(driver, driver)


class _Sent:
    """Learns from the messages of a batch what its span has to say about them."""

    def __init__(self, trace: Any, span: Any) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._extract = TraceContextTextMapPropagator().extract
        self._trace = trace
        self._span = span
        self._linked: set[str] = set()
        self._destinations: set[tuple[str, str]] = set()

    def see(self, message: Message) -> None:
        """Called for each message. It is parsed already: this only looks up its headers."""
        self._destinations.add((message.exchange, message.routing_key))
        caller = message.headers.get("traceparent")
        if isinstance(caller, str) and len(self._linked) < MOST_LINKS:
            self._link(caller, message.headers)

    def describe(self, system: str) -> None:
        """Name the destination on the span, if all messages have the same one."""
        if len(self._destinations) != 1:
            return
        ((exchange, routing_key),) = self._destinations
        if system == "rabbitmq":
            name = ":".join(filter(None, (exchange, routing_key))) or "amq.default"
            if routing_key:
                self._span.set_attribute("messaging.rabbitmq.destination.routing_key", routing_key)
        else:
            name = routing_key or exchange
        self._span.set_attribute("messaging.destination.name", name)
        self._span.update_name(f"{SEND} {name}")

    def _link(self, caller: str, headers: dict[str, Any]) -> None:
        if caller in self._linked:  # calls of one span, or a message that is sent again
            return
        self._linked.add(caller)
        found = self._trace.get_current_span(self._extract(headers)).get_span_context()
        if found.is_valid:
            self._span.add_link(found)


@contextmanager
def _around(trace: Any, span: Any, batch: Publishing, system: str) -> Iterator[None]:
    sent = _Sent(trace, span)
    batch.watchers.append(sent.see)
    # Not recorded by OpenTelemetry itself: the text of an exception may contain arguments.
    with trace.use_span(span, True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except BaseException as error:
            _fail(trace, span, type(error).__name__)
            raise
        finally:
            with suppress(Exception):
                sent.describe(system)
        if batch.outage:
            _fail(trace, span, batch.outage)


def _fail(trace: Any, span: Any, error: str) -> None:
    """`error` is a class, perhaps with a message."""
    name, _, _ = error.partition(":")
    span.set_attribute("error.type", name if name.isidentifier() else "_OTHER")
    span.set_status(trace.StatusCode.ERROR, error)
