"""Metrics through OpenTelemetry's API (extra `[opentelemetry]`), to the project's meter provider.

The names are those of Prometheus without `_total`, which exporters add: behind a collector the
alert rules and the dashboard fit. Gauges are asked for at each export, so that none outlives its
relay. Without a meter provider OpenTelemetry drops everything. Spans are in `opentelemetry.py`.
"""

from __future__ import annotations

import inspect
import os
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from celery_outbox_steps.observe.metrics import METRICS

try:
    from opentelemetry.metrics import Meter, Observation, get_meter
except ImportError as missing:
    raise ImportError(
        f'{missing}; run: pip install "celery-outbox-steps[opentelemetry]"'
    ) from missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opentelemetry.metrics import MeterProvider

    from celery_outbox_steps.observe.metrics import GaugeSource, Metric

ADVICE = "explicit_bucket_boundaries_advisory"
TAKES_ADVICE = ADVICE in inspect.signature(Meter.create_histogram).parameters
"""Whether this version of OpenTelemetry can be told the buckets of a histogram. If not, the project
names them in a view."""


@lru_cache(maxsize=1)
def _only_sink() -> OpenTelemetrySink:
    return OpenTelemetrySink()


def sink(app: Any) -> OpenTelemetrySink:  # noqa: ARG001  the interface of a sink's factory
    """The sink for `CELERY_OUTBOX_METRICS = "opentelemetry"`: one for all apps of this process."""
    return _only_sink()


class OpenTelemetrySink:
    """One instrument for each metric that Prometheus has."""

    def __init__(self, provider: MeterProvider | None = None) -> None:
        self._meter = get_meter("celery_outbox_steps", meter_provider=provider)
        self._sources: WeakSet[GaugeSource] = WeakSet()
        shown = {name: metric for name, metric in METRICS.items() if metric.prometheus}
        self._counters = {
            name: self._meter.create_counter(*_described(metric))
            for name, metric in shown.items()
            if metric.kind == "counter"
        }
        self._histograms = {
            name: self._histogram(metric) for name, metric in shown.items() if metric.buckets
        }
        for name, metric in shown.items():
            if metric.kind == "gauge":
                _, unit, text = _described(metric)
                asked = [partial(self._observe, name)]
                self._meter.create_observable_gauge(metric.prometheus, asked, unit, text)
        os.register_at_fork(after_in_child=self._sources.clear)  # a child has no relay

    def increment(self, name: str, value: int, tags: Mapping[str, str]) -> None:
        self._counters[name].add(value, dict(tags))

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        """Nothing: gauges are asked for at an export."""

    def timing(self, name: str, milliseconds: float, tags: Mapping[str, str]) -> None:
        self.distribution(name, [milliseconds / 1000], tags)

    def distribution(self, name: str, values: Sequence[float], tags: Mapping[str, str]) -> None:
        histogram = self._histograms.get(name)
        for value in values if histogram is not None else ():
            histogram.record(value, dict(tags))  # type: ignore[union-attr]

    def watch(self, source: GaugeSource) -> None:
        self._sources.add(source)

    def _histogram(self, metric: Metric) -> Any:
        advice: dict[str, Any] = {ADVICE: metric.buckets} if TAKES_ADVICE else {}
        return self._meter.create_histogram(*_described(metric), **advice)

    def _observe(self, name: str, _: Any) -> Iterator[Observation]:
        for source in list(self._sources):
            for gauge in source.gauges():
                if gauge.name == name:
                    yield Observation(gauge.value, dict(gauge.tags))


def _described(metric: Metric) -> tuple[str, str, str]:
    """Name, unit and description, in the order of OpenTelemetry's functions."""
    name = metric.prometheus.removesuffix("_total")
    return name, "s" if name.endswith("_seconds") else "", metric.help
