"""Metrics to DogStatsD through the `datadog` package (the extra `[datadog]`).

Where the agent listens is read from Django's settings (`MONITORING_STATSD_*`); what is not set
there is up to the `datadog` package and its environment variables. Sending is a UDP packet from
the calling thread: no thread, nothing to lose in a fork.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_outbox_steps.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_outbox_steps.observe.metrics import Sink

PREFIX = "celery_outbox"


def sink(app: Any) -> Sink | None:  # noqa: ARG001  what every sink factory is called with
    """The sink for `CELERY_OUTBOX_METRICS = "datadog"`; None if they are switched off."""
    from django.conf import settings

    if not getattr(settings, "MONITORING_METRICS_ENABLED", True):
        return None
    return DatadogSink(
        host=getattr(settings, "MONITORING_STATSD_HOST", None),
        port=getattr(settings, "MONITORING_STATSD_PORT", None),
        prefix=getattr(settings, "MONITORING_STATSD_PREFIX", PREFIX),
        tags=getattr(settings, "MONITORING_STATSD_TAGS", None) or {},
    )


class DatadogSink:
    """One DogStatsD client. `tags` go with every metric."""

    def __init__(
        self,
        host: str | None = None,
        port: int | None = None,
        prefix: str = PREFIX,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self._client = _client_class()(
            host=host,
            port=None if port is None else int(port),
            namespace=prefix,
            constant_tags=_pairs(tags or {}),
            disable_buffering=True,
            disable_telemetry=True,
        )

    def increment(self, name: str, value: int, tags: Mapping[str, str]) -> None:
        self._client.increment(name, value, tags=_pairs(tags))

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        self._client.gauge(name, value, tags=_pairs(tags))

    def timing(self, name: str, milliseconds: float, tags: Mapping[str, str]) -> None:
        self._client.timing(name, milliseconds, tags=_pairs(tags))


def _client_class() -> Any:
    try:
        from datadog.dogstatsd import DogStatsd
    except ImportError as exc:
        raise ConfigurationError(
            f'Metrics can\'t be sent: {exc}; run: pip install "celery-outbox-steps[datadog]"'
        ) from exc
    return DogStatsd


def _pairs(tags: Mapping[str, str]) -> list[str]:
    return [f"{name}:{value}" for name, value in tags.items()]
