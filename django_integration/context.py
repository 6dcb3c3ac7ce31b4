"""What surrounds a call and would be lost on the way: Sentry's trace and structlog's context.

Both are optional. A library that nobody imported has nothing to catch, so it is looked up among
the loaded modules and never imported from here.
"""

from __future__ import annotations

import json
import sys
from typing import NamedTuple


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
    sentry_sdk = sys.modules.get("sentry_sdk")
    if sentry_sdk is None or not sentry_sdk.is_initialized():
        return None, None
    return sentry_sdk.get_traceparent(), sentry_sdk.get_baggage()


def _structlog(keys: frozenset[str] | None) -> str | None:
    contextvars = sys.modules.get("structlog.contextvars")
    if contextvars is None:
        return None
    context = contextvars.get_contextvars()
    kept = {key: value for key, value in context.items() if keys is None or key in keys}
    return json.dumps(kept, default=repr) if kept else None
