"""Sentry: the caller's trace on both sides of the outbox, and errors of the relay's loop.

Enqueue and relay are one span each; the message continues its caller's trace. Spans of the relay's
own statements are not sampled. Task arguments are never sent to Sentry from here, not even as local
variables of a stack trace.
"""

from __future__ import annotations

import sys
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.observe.recorder import Recorder, shared

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery_outbox_steps.messages import ClaimedMessage, Message
    from celery_outbox_steps.observe.recorder import Around, Publishing

TRACE, BAGGAGE = "sentry-trace", "baggage"
ORIGIN = "auto.queue.celery_outbox"
ENQUEUE = ("queue.submit", "celery_outbox.enqueue")
RELAY = ("queue.publish", "celery_outbox.relay")
"""Op and name of the two spans."""
TICK = "celery_outbox.tick"
"""The span that is not sampled."""


class Sentry(Recorder):
    """Active if `sentry_sdk` is loaded and initialised."""

    library = "sentry_sdk"

    def on_call(self) -> Mapping[str, str | None]:
        sdk = initialised_sdk()
        if sdk is None:
            return {}
        integration = sdk.get_client().get_integration("celery")
        if integration is not None and not integration.propagate_traces:
            return {}  # the project wants its tasks in traces of their own
        return {"sentry_trace_id": sdk.get_traceparent(), "sentry_baggage": sdk.get_baggage()}

    def around_storing(self, rows: Sequence[Any]) -> Around:
        """A span around the INSERT, as a child of the caller's span if there is one."""
        sdk = initialised_sdk()
        return None if sdk is None else _child(sdk, len(rows))

    def around_tick(self) -> Around:
        """Streamed spans are sent without a transaction too, so they must not be sampled."""
        sdk = initialised_sdk()
        return _unsampled(sdk) if sdk and streams(sdk) and _may_sample(sdk) else None

    def around_publishing(self, batch: Publishing) -> Around:
        """One span per batch, in the callers' trace if they all share one."""
        sdk = initialised_sdk()
        if sdk is None:
            return None
        rows = batch.rows
        trace = shared(row.sentry_trace_id and row.sentry_trace_id[:32] for row in rows)
        headers = _trace_headers(rows[0]) if trace else {}
        return _segment(sdk, headers, len(rows)) if _may_sample(sdk, headers.get(TRACE)) else None

    def on_error(self, error: BaseException, logger_name: str, tags: Mapping[str, str]) -> None:
        """One event for this error. The log line of the same error does not become a second."""
        sdk = initialised_sdk()
        if sdk is None:
            return
        from sentry_sdk.integrations.logging import ignore_logger
        from sentry_sdk.utils import event_from_exception

        ignore_logger(logger_name)
        options = {**sdk.get_client().options, "include_local_variables": False}
        mechanism = {"type": "celery_outbox", "handled": True}
        event, hint = event_from_exception(error, client_options=options, mechanism=mechanism)
        event["tags"] = {**event.get("tags", {}), **tags}
        sdk.capture_event(event, hint=hint)


class SentryHeaders(Recorder):
    """Puts the stored trace into the message, even if the relay itself runs without the SDK."""

    def on_opened(self, row: ClaimedMessage, message: Message) -> None:
        """Unless its headers have one already: Sentry's own Celery integration writes them."""
        if row.sentry_trace_id is not None and TRACE not in message.headers:
            _continue_trace(message, _trace_headers(row))


def initialised_sdk() -> Any:
    """The `sentry_sdk` module if it is loaded and initialised, else None."""
    sdk: Any = sys.modules.get(Sentry.library)
    return sdk if sdk is not None and sdk.is_initialized() else None


def streams(sdk: Any) -> bool:
    """Whether a newer SDK sends spans one by one; other functions start them then."""
    options = sdk.get_client().options
    experiments = options.get("_experiments") or {}
    mode = options.get("trace_lifecycle") or experiments.get("trace_lifecycle")
    return bool(mode == "stream")


def _may_sample(sdk: Any, parent: str | None = None) -> bool:
    """Whether a trace may be sampled, as far as is known in advance: starting one is expensive."""
    options = sdk.get_client().options
    if options.get("traces_sampler"):
        return True
    rate = options.get("traces_sample_rate")
    if rate is None or (parent or "").endswith("-0"):
        return False
    return rate > 0 or (parent or "").endswith("-1")


@contextmanager
def _child(sdk: Any, count: int) -> Iterator[None]:
    """A child of the caller's span, if there is one."""
    op, name = ENQUEUE
    spans = sdk.traces if streams(sdk) else sdk
    if spans.get_current_span() is None:
        yield
        return
    options = {"op": op, "origin": ORIGIN} if spans is sdk else {"attributes": _attributes(op)}
    with spans.start_span(name=name, **options) as span:
        _set_count(span, count)
        yield


@contextmanager
def _unsampled(sdk: Any) -> Iterator[None]:
    """Streamed spans are not sent if their trace is not sampled.

    The project's `traces_sampler`, if there is one, still decides for the outermost span.
    """
    trace_id, span_id = uuid.uuid4().hex, uuid.uuid4().hex[:16]
    with sdk.isolation_scope():
        sdk.traces.continue_trace({TRACE: f"{trace_id}-{span_id}-0"})
        with sdk.traces.start_span(name=TICK, parent_span=None):
            yield


@contextmanager
def _segment(sdk: Any, headers: dict[str, str], count: int) -> Iterator[None]:
    """A transaction of its own, in the trace that the headers name, if any."""
    with sdk.isolation_scope(), _started(sdk, headers) as span:
        _set_count(span, count)
        yield


def _started(sdk: Any, headers: dict[str, str]) -> Any:
    op, name = RELAY
    if streams(sdk):
        sdk.traces.continue_trace(headers)
        return sdk.traces.start_span(name=name, attributes=_attributes(op), parent_span=None)
    transaction = sdk.continue_trace(headers, op=op, name=name, source="task", origin=ORIGIN)
    return sdk.start_transaction(transaction)


def _set_count(span: Any, count: int) -> None:
    set_value = span.set_attribute if hasattr(span, "set_attribute") else span.set_data
    set_value("messaging.batch.message_count", count)


def _attributes(op: str) -> dict[str, str]:
    return {"sentry.op": op, "sentry.origin": ORIGIN}


def _continue_trace(message: Message, trace: dict[str, str]) -> None:
    """As Sentry's Celery integration does: outer headers for brokers, inner for `task.request`."""
    headers = message.headers
    if not message.is_task:
        message.headers = {**trace, **headers}
        return
    inner = headers.get("headers")
    inner = dict(inner) if isinstance(inner, dict) else {}
    for name, value in trace.items():
        headers.setdefault(name, value)
        inner.setdefault(name, value)
    headers["headers"] = inner


def _trace_headers(row: ClaimedMessage) -> dict[str, str]:
    pairs = ((TRACE, row.sentry_trace_id), (BAGGAGE, row.sentry_baggage))
    return {name: value for name, value in pairs if value}
