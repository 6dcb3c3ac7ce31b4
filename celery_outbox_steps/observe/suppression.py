"""The relay's own statements are no spans: an idle relay would be a trace per second.

OpenTelemetry, Datadog and Sentry are looked up among the loaded modules and never imported from
here; where none is loaded, a tick costs three look-ups. Only their public ways are used, in the
relay's thread and for the time of its own work. The callers' traces travel in the messages.
"""

from __future__ import annotations

import sys
import uuid
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from celery_outbox_steps.observe import tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

P = ParamSpec("P")
T = TypeVar("T")

TICK = "celery_outbox.tick"
"""The span that is dropped, and all below it with it."""
MANUAL_DROP = "manual.drop"
"""Datadog's tag for a trace that is not to be kept."""

_outside: ContextVar[Context | None] = ContextVar("celery_outbox_outside", default=None)


def untraced(work: Callable[P, T]) -> Callable[P, T]:
    """`work`, of which tracing libraries see nothing, or keep nothing."""

    @wraps(work)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> T:
        suppressors = _suppressors()
        if not suppressors:
            return work(*args, **kwargs)
        token = _outside.set(copy_context())
        try:
            with tracing.entered(*suppressors):
                return work(*args, **kwargs)
        finally:
            _outside.reset(token)

    return quiet


def traced(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Code of the project inside `untraced` work, such as receivers: traced as if outside of it."""
    outside = _outside.get()
    return work(*args, **kwargs) if outside is None else outside.run(work, *args, **kwargs)


def _suppressors() -> list[Callable[[], AbstractContextManager[Any]]]:
    found: list[Callable[[], AbstractContextManager[Any]]] = []
    opentelemetry = sys.modules.get("opentelemetry.instrumentation.utils")
    if opentelemetry is not None:
        found.append(opentelemetry.suppress_instrumentation)
    datadog = sys.modules.get("ddtrace.trace")
    if datadog is not None:
        found.append(lambda: _dropped(datadog.tracer))
    sentry = tracing.sentry()
    if sentry is not None and tracing.streams(sentry) and tracing.samples(sentry):
        found.append(lambda: _unsampled(sentry))
    return found


@contextmanager
def _dropped(tracer: Any) -> Iterator[None]:
    """Datadog can't be told to make no spans, but to keep none of a trace."""
    with tracer.trace(TICK) as span:
        span.set_tag(MANUAL_DROP)
        yield


@contextmanager
def _unsampled(sdk: Any) -> Iterator[None]:
    """Streamed spans need no transaction: as part of a trace that is not sampled they are none.

    A `traces_sampler` of the project has the last word, for the span around all of them.
    """
    trace_id, span_id = uuid.uuid4().hex, uuid.uuid4().hex[:16]
    with sdk.isolation_scope():
        sdk.traces.continue_trace({tracing.TRACE: f"{trace_id}-{span_id}-0"})
        with sdk.traces.start_span(name=TICK, parent_span=None):
            yield
