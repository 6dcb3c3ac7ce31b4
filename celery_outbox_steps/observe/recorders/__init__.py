"""The recorders of one app: the built-in vendors, the metrics, and the registered ones.

Imported only by the code that builds a relay or the enqueue side. A vendor's library is looked up
among the loaded modules for each hook, and never imported unless the project configured it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_outbox_steps.observe.metrics import Meter, Metrics
from celery_outbox_steps.observe.recorder import Recorder, Recorders, registered
from celery_outbox_steps.observe.recorders.ddtrace import Ddtrace
from celery_outbox_steps.observe.recorders.opentelemetry import (
    BatchSpans,
    EventHeaders,
    OpenTelemetry,
)
from celery_outbox_steps.observe.recorders.sentry import Sentry, SentryHeaders
from celery_outbox_steps.observe.recorders.structlog import Structlog, StructlogHeader
from celery_outbox_steps.settings import read

if TYPE_CHECKING:
    from collections.abc import Iterator


def recorders_for(
    app: Any, meter: Meter | None = None, destination: str | None = None, broker: Any = None
) -> Recorders:
    """The recorders for the app's settings; metrics only if a meter is given.

    `destination` and its `broker`: what is published to, if not to the app's own.
    """
    return Recorders(_recorders(app, meter, destination, broker or app))


def _recorders(
    app: Any, meter: Meter | None, destination: str | None, broker: Any
) -> Iterator[Recorder]:
    # The order of nesting: the context manager of each is inside the one before.
    yield Structlog(read(app.conf, "structlog_context_keys"))
    if read(app.conf, "structlog_bind_in_tasks"):
        yield StructlogHeader()
    yield OpenTelemetry()
    yield EventHeaders()
    yield BatchSpans(broker)
    yield Ddtrace()
    yield Sentry()
    yield SentryHeaders()
    if meter is not None:
        yield Metrics(meter, destination)
    yield from registered()
