"""Metrics to DogStatsD through the `datadog` package (the extra `[datadog]`).

`monitoring_statsd_*` in the app's configuration says where the agent listens (Django's settings of
these names are read into it); the `datadog` package and its environment variables provide the rest.
A metric is a UDP packet, sent by the calling thread: no thread and no buffer to lose in a fork.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_outbox_steps.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_outbox_steps.observe.metrics import Sink

PREFIX = "celery_outbox"


def sink(app: Any) -> Sink | None:
    """The sink for `CELERY_OUTBOX_METRICS = "datadog"`; None if metrics are switched off."""
    conf = app.conf
    if not conf.get("monitoring_metrics_enabled", True):
        return None
    return DatadogSink(
        host=conf.get("monitoring_statsd_host"),
        port=conf.get("monitoring_statsd_port"),
        prefix=conf.get("monitoring_statsd_prefix", PREFIX),
        tags=conf.get("monitoring_statsd_tags"),
    )


class DatadogSink:
    """One DogStatsD client. `tags` are added to every metric."""

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
