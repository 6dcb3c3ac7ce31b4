"""Metrics leave through one small sink; who receives them is the sink's business.

A sink is any object with `increment`, `gauge` and `timing`. `CELERY_OUTBOX_METRICS` names a
callable that takes the Celery app and returns one, or "datadog". A sink that raises is logged once
and never hurts an enqueue or the relay.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from celery.utils.imports import symbol_by_name

from celery_outbox_steps.config import read
from celery_outbox_steps.errors import ConfigurationError

logger = logging.getLogger("celery_outbox")

ALIASES = {"datadog": "django_integration.datadog:DatadogSink"}


class Sink(Protocol):
    """Where metrics go. Names come without the prefix `celery_outbox.`."""

    def increment(self, name: str, value: int, tags: Mapping[str, str]) -> None: ...

    def gauge(self, name: str, value: float) -> None: ...

    def timing(self, name: str, milliseconds: float) -> None: ...


class SafeSink:
    """Passes on to a sink and swallows what it raises, after one log line."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._failed = False

    def increment(self, name: str, value: int, tags: Mapping[str, str]) -> None:
        self._call("increment", name, value, tags)

    def gauge(self, name: str, value: float) -> None:
        self._call("gauge", name, value)

    def timing(self, name: str, milliseconds: float) -> None:
        self._call("timing", name, milliseconds)

    def _call(self, method: str, *args: Any) -> None:
        try:
            getattr(self._sink, method)(*args)
        except Exception as exc:
            if not self._failed:
                self._failed = True
                logger.exception(
                    "celery_outbox_metrics_failed: the sink raised %s; further errors of it are "
                    "not logged", type(exc).__name__,
                    extra={"event": "celery_outbox_metrics_failed"},
                )


def sink_for(app: Any) -> Sink | None:
    """The configured sink, or None where metrics are off."""
    chosen = read(app.conf, "metrics")
    if chosen is None:
        return None
    try:
        factory = symbol_by_name(ALIASES.get(chosen, chosen)) if isinstance(chosen, str) else chosen
        return SafeSink(factory(app))
    except (ImportError, AttributeError) as exc:
        raise ConfigurationError(
            f"CELERY_OUTBOX_METRICS = {chosen!r} can't be imported: {exc}."
        ) from exc
