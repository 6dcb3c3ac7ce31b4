"""What surrounds a call and would be lost on the way: Sentry's trace and structlog's context.

Both are optional, and neither is imported from here. What is caught goes into columns of the row;
the relay puts it back with `celery_outbox_steps.observe.tracing`.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from celery_outbox_steps.observe import tracing


class Context(NamedTuple):
    """The three columns. Field names are column names."""

    sentry_trace_id: str | None = None
    sentry_baggage: str | None = None
    structlog_context: str | None = None


def catch(*, structlog: bool = True, keys: frozenset[str] | None = None) -> Context:
    """The context of this call; `keys` are the structlog variables to keep, None = all."""
    trace, baggage = _sentry()
    return Context(trace, baggage, _structlog(keys) if structlog else None)


def _sentry() -> tuple[str | None, str | None]:
    sdk = tracing.sentry()
    if sdk is None:
        return None, None
    integration = sdk.get_client().get_integration("celery")
    if integration is not None and not integration.propagate_traces:
        return None, None  # the project wants its tasks in traces of their own
    return sdk.get_traceparent(), sdk.get_baggage()


def _structlog(keys: frozenset[str] | None) -> str | None:
    contextvars = tracing.structlog()
    if contextvars is None:
        return None
    context = contextvars.get_contextvars()
    kept = {key: value for key, value in context.items() if keys is None or key in keys}
    return json.dumps(kept, default=repr) if kept else None
