"""The caller's context on both sides of the outbox: Sentry's trace and structlog's variables.

Both are optional: a library that nobody imported is looked up among the loaded modules and never
imported from here. A batch has the messages of many callers, so only what all of them share
surrounds its publishing; a log line about one message has that message's own context. Arguments
of tasks never go to Sentry from here, not even as local variables of a stack trace.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from celery_outbox_steps.messages import ClaimedMessage, Message

TRACE, BAGGAGE = "sentry-trace", "baggage"
ORIGIN = "auto.queue.celery_outbox"
ENQUEUE = ("queue.submit", "celery_outbox.enqueue")
RELAY = ("queue.publish", "celery_outbox.relay")
"""Op and name of the two spans."""

_NOTHING = nullcontext()


def sentry() -> Any:
    """The `sentry_sdk` module where it is loaded and initialised, else None."""
    module = sys.modules.get("sentry_sdk")
    return module if module is not None and module.is_initialized() else None


def streams(sdk: Any) -> bool:
    """Newer SDKs can send spans one by one, and then have other functions to start them."""
    options = sdk.get_client().options
    experiments = options.get("_experiments") or {}
    mode = options.get("trace_lifecycle") or experiments.get("trace_lifecycle")
    return bool(mode == "stream")


def samples(sdk: Any, parent: str | None = None) -> bool:
    """Whether a trace may be sampled, by all that is known before it starts: starting one costs."""
    options = sdk.get_client().options
    if options.get("traces_sampler"):
        return True
    rate = options.get("traces_sample_rate")
    if rate is None or (parent or "").endswith("-0"):
        return False
    return rate > 0 or (parent or "").endswith("-1")


def structlog() -> Any:
    """The `structlog.contextvars` module where it is loaded, else None."""
    return sys.modules.get("structlog.contextvars")


def storing(rows: Sequence[Any]) -> AbstractContextManager[Any]:
    """A span around the INSERT, where the caller has one that it can be part of."""
    sdk = sentry()
    return _NOTHING if sdk is None else entered(lambda: _child(sdk, len(rows)))


def around(rows: Sequence[ClaimedMessage]) -> AbstractContextManager[Any]:
    """One span per batch, and the callers' context around it if all of them share one."""
    sdk, contextvars = sentry(), structlog()
    surroundings: list[Callable[[], AbstractContextManager[Any]]] = []
    if contextvars is not None:
        context = _shared(row.structlog_context for row in rows)
        surroundings.append(lambda: _bound(contextvars, context))
    parent = _parent(rows) if sdk is not None else None
    if sdk is not None and samples(sdk, parent and parent.sentry_trace_id):
        surroundings.append(lambda: _segment(sdk, parent, len(rows)))
    return entered(*surroundings) if surroundings else _NOTHING


def restore(row: ClaimedMessage, message: Message) -> None:
    """Give the message the trace that its caller was in, unless its headers have one already.

    Sentry's own Celery integration writes the headers at enqueue; then there is nothing to do.
    """
    if row.sentry_trace_id is not None and TRACE not in message.headers:
        _continue(message.headers, row)


def bound(row: ClaimedMessage) -> AbstractContextManager[Any]:
    """structlog's variables of the caller, for log lines about this message."""
    contextvars = structlog()
    if contextvars is None or row.structlog_context is None:
        return _NOTHING
    return _bound(contextvars, row.structlog_context)


def capture(error: BaseException, logger_name: str, tags: Mapping[str, str]) -> None:
    """One event for this error. The log line of the same error is kept from becoming a second."""
    sdk = sentry()
    if sdk is None:
        return
    with suppress(Exception):
        from sentry_sdk.integrations.logging import ignore_logger
        from sentry_sdk.utils import event_from_exception

        ignore_logger(logger_name)
        options = {**sdk.get_client().options, "include_local_variables": False}
        mechanism = {"type": "celery_outbox", "handled": True}
        event, hint = event_from_exception(error, client_options=options, mechanism=mechanism)
        event["tags"] = {**event.get("tags", {}), **tags}
        sdk.capture_event(event, hint=hint)


@contextmanager
def entered(*makers: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Enter what can be entered. Other people's tracing must not stop a call or lose a batch."""
    stack = ExitStack()
    with suppress(Exception):
        for make in makers:
            stack.enter_context(make())
    try:
        yield
    except BaseException:
        with suppress(Exception):
            stack.__exit__(*sys.exc_info())
        raise
    with suppress(Exception):
        stack.close()


# -- Sentry ---------------------------------------------------------------------------------------


@contextmanager
def _segment(sdk: Any, parent: ClaimedMessage | None, count: int) -> Iterator[None]:
    """A transaction of its own, in the callers' trace if they are all in the same one."""
    headers = {} if parent is None else _trace_headers(parent)
    with sdk.isolation_scope(), _started(sdk, headers) as span:
        _describe(span, count)
        yield


def _parent(rows: Sequence[ClaimedMessage]) -> ClaimedMessage | None:
    """The row whose trace is the one of all of them."""
    shared = _shared(row.sentry_trace_id and row.sentry_trace_id[:32] for row in rows)
    return rows[0] if shared else None


def _started(sdk: Any, headers: dict[str, str]) -> Any:
    op, name = RELAY
    if streams(sdk):
        sdk.traces.continue_trace(headers)
        return sdk.traces.start_span(name=name, attributes=_attributes(op), parent_span=None)
    transaction = sdk.continue_trace(headers, op=op, name=name, source="task", origin=ORIGIN)
    return sdk.start_transaction(transaction)


@contextmanager
def _child(sdk: Any, count: int) -> Iterator[None]:
    """A span of the caller's, if it has one."""
    op, name = ENQUEUE
    spans = sdk.traces if streams(sdk) else sdk
    if spans.get_current_span() is None:
        yield
        return
    known = {"op": op, "origin": ORIGIN} if spans is sdk else {"attributes": _attributes(op)}
    with spans.start_span(name=name, **known) as span:
        _describe(span, count)
        yield


def _describe(span: Any, count: int) -> None:
    tell = span.set_attribute if hasattr(span, "set_attribute") else span.set_data
    tell("messaging.batch.message_count", count)


def _attributes(op: str) -> dict[str, str]:
    return {"sentry.op": op, "sentry.origin": ORIGIN}


def _continue(headers: dict[str, Any], row: ClaimedMessage) -> None:
    """As Sentry's Celery integration does: outside for brokers, inside for `task.request`."""
    inner = headers.get("headers")
    inner = dict(inner) if isinstance(inner, dict) else {}
    for name, value in _trace_headers(row).items():
        headers.setdefault(name, value)
        inner.setdefault(name, value)
    headers["headers"] = inner


def _trace_headers(row: ClaimedMessage) -> dict[str, str]:
    pairs = ((TRACE, row.sentry_trace_id), (BAGGAGE, row.sentry_baggage))
    return {name: value for name, value in pairs if value}


# -- structlog ------------------------------------------------------------------------------------


@contextmanager
def _bound(contextvars: Any, context: str | None) -> Iterator[None]:
    """Bind while the block runs; then everything is as it was, also what was bound before."""
    tokens = contextvars.bind_contextvars(**_variables(context))
    try:
        yield
    finally:
        contextvars.reset_contextvars(**tokens)


def _variables(context: str | None) -> dict[str, Any]:
    try:
        found = json.loads(context) if context else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _shared(values: Iterable[str | None]) -> str | None:
    """The value that all have in common, None if they differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None
