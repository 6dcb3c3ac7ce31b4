"""Metrics for Prometheus, in the default registry of `prometheus_client` (extra `[prometheus]`).

Counters are ordinary ones, so that the project's own set-up exports them, also in web processes and
in multiprocess mode. Gauges and histograms exist where a relay runs: one collector asks for them in
each scrape, so that none outlives its relay. `/metrics` of a worker is `PrometheusSink.page`.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from functools import lru_cache
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from celery_outbox_steps.observe.metrics import METRICS, Page

try:
    from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter
    from prometheus_client import generate_latest as render
    from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.multiprocess import MultiProcessCollector
except ImportError as missing:
    raise ImportError(f'{missing}; run: pip install "celery-outbox-steps[prometheus]"') from missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prometheus_client.core import Metric as Family

    from celery_outbox_steps.observe.metrics import GaugeSource


@lru_cache(maxsize=1)
def _only_sink() -> PrometheusSink:
    return PrometheusSink()


def sink(app: Any) -> PrometheusSink:  # noqa: ARG001  the interface of a sink's factory
    """The sink for `CELERY_OUTBOX_METRICS = "prometheus"`: one for all apps of this process."""
    return _only_sink()


class PrometheusSink:
    """The counters, and the collector of everything else, in one registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._counters = {
            name: Counter(metric.prometheus, metric.help, metric.tags, registry=registry)
            for name, metric in METRICS.items()
            if metric.kind == "counter"
        }
        self._collector = RelayCollector()
        registry.register(self._collector)

    def increment(self, name: str, value: int, tags: Mapping[str, str]) -> None:
        self._counters[name].labels(*_labels(name, tags)).inc(value)

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        """Nothing: gauges are asked for at a scrape."""

    def timing(self, name: str, milliseconds: float, tags: Mapping[str, str]) -> None:
        self.distribution(name, [milliseconds / 1000], tags)

    def distribution(self, name: str, values: Sequence[float], tags: Mapping[str, str]) -> None:
        if METRICS[name].buckets:
            self._collector.observe(name, values, tags)

    def watch(self, source: GaugeSource) -> None:
        self._collector.sources.add(source)
        for gauge in source.gauges():
            if gauge.name == "relay.paused":  # from 0 on, so that the first one is an increase
                self.increment("messages.fenced", 0, gauge.tags)

    def page(self) -> Page:
        return Page(CONTENT_TYPE_LATEST, render(self._exported()))

    def _exported(self) -> CollectorRegistry:
        """In multiprocess mode the counters of a pool's children are in files, not in memory."""
        if not os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            return self._registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        registry.register(self._collector)
        return registry


class RelayCollector:
    """The gauges and histograms of the relays in this process."""

    def __init__(self) -> None:
        self.sources: WeakSet[GaugeSource] = WeakSet()
        self._histograms: dict[tuple[str, ...], Histogram] = {}
        self._lock = Lock()
        os.register_at_fork(after_in_child=self._forget)

    def observe(self, name: str, values: Sequence[float], tags: Mapping[str, str]) -> None:
        """Add up, with one lock for a whole batch."""
        with self._lock:
            key = name, *_labels(name, tags)
            if key not in self._histograms:
                self._histograms[key] = Histogram(METRICS[name].buckets)
            self._histograms[key].add(values)

    def describe(self) -> Iterator[Family]:
        """For the registry, which looks for names that are there already."""
        yield from self._families().values()

    def collect(self) -> Iterator[Family]:
        families = self._families()
        for source in list(self.sources):
            for gauge in source.gauges():
                families[gauge.name].add_metric(_labels(gauge.name, gauge.tags), gauge.value)
        with self._lock:
            for (name, *labels), histogram in self._histograms.items():
                families[name].add_metric(labels, histogram.buckets(), histogram.sum)
        yield from (family for family in families.values() if family.samples)

    def _families(self) -> dict[str, Any]:
        return {
            name: (HistogramMetricFamily if metric.buckets else GaugeMetricFamily)(
                metric.prometheus, metric.help, labels=metric.tags
            )
            for name, metric in METRICS.items()
            if metric.prometheus and metric.kind != "counter"
        }

    def _forget(self) -> None:
        """A child has no relay. What the lock protects may be half written there."""
        self.sources, self._histograms, self._lock = WeakSet(), {}, Lock()


def _labels(name: str, tags: Mapping[str, str]) -> list[str]:
    """Prometheus does not tell an empty label from one that is not there."""
    return [tags.get(label, "") for label in METRICS[name].tags]


class Histogram:
    """Counts by bucket. Not the one of `prometheus_client`, which takes one value at a time."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def add(self, values: Sequence[float]) -> None:
        self.sum += sum(values)
        for value in values:
            self._counts[bisect_left(self._bounds, value)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """How many values are at most each bound."""
        bounds = [*map(str, self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))
