"""The recorders of one app: the vendors that we know, the metrics, and those that were registered.

Only what puts a relay or the enqueue side together imports this. A vendor's library is looked up
among the loaded modules for each hook, and never imported unless the project configured it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_outbox_steps.observe.metrics import Meter, Metrics
from celery_outbox_steps.observe.recorder import Recorder, Recorders, registered
from celery_outbox_steps.observe.recorders.ddtrace import Ddtrace
from celery_outbox_steps.observe.recorders.opentelemetry import OpenTelemetry
from celery_outbox_steps.observe.recorders.sentry import Sentry, SentryHeaders
from celery_outbox_steps.observe.recorders.structlog import Structlog
from celery_outbox_steps.settings import read

if TYPE_CHECKING:
    from collections.abc import Iterator


def recorders_for(app: Any, meter: Meter | None = None) -> Recorders:
    """The recorders that the app's settings ask for. Metrics only where a meter is given."""
    return Recorders(_recorders(app, meter))


def _recorders(app: Any, meter: Meter | None) -> Iterator[Recorder]:
    # The order in which they surround something: each inside the one before.
    yield Structlog(read(app.conf, "structlog_context_keys"))
    yield OpenTelemetry()
    yield Ddtrace()
    yield Sentry()
    yield SentryHeaders()
    if meter is not None:
        yield Metrics(meter)
    yield from registered()
