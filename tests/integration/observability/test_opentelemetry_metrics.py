"""Metrics through OpenTelemetry: the names of Prometheus, and gauges that end with their relay."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from celery_outbox_steps.messages import BatchResult, ClaimedMessage, Published
from celery_outbox_steps.observe.metrics import METRICS, Gauge, Meter, Metrics, meter_for
from celery_outbox_steps.observe.recorders.opentelemetry_metrics import (
    TAKES_ADVICE,
    OpenTelemetrySink,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ROW = ClaimedMessage(
    1, "id", "shop.mail", "[]", "{}", "{}", None, 0, 1, None, None, None, None, 0.2
)
TAGS = {"database": "default"}


class Relay:
    """A source of gauges."""

    def gauges(self) -> Iterator[Gauge]:
        for name, metric in METRICS.items():
            if metric.kind == "gauge" and metric.prometheus:
                yield Gauge(name, 7.0, dict.fromkeys(metric.tags, "x"))


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def meter(reader: InMemoryMetricReader) -> Meter:
    return Meter(OpenTelemetrySink(MeterProvider([reader])))


def exported(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    found = data.resource_metrics[0].scope_metrics if data and data.resource_metrics else []
    return {metric.name: metric for scope in found for metric in scope.metrics}


def test_every_metric_of_prometheus_is_exported_under_its_name(
    meter: Meter, reader: InMemoryMetricReader
) -> None:
    relay = Relay()
    meter.watch(relay)
    for name, metric in METRICS.items():
        if metric.kind == "counter":
            meter.count(name, 1, dict.fromkeys(metric.tags, "x"))
        elif metric.buckets:
            meter.distribute(name, [0.1], TAGS)
    names = {each.prometheus.removesuffix("_total") for each in METRICS.values()} - {""}
    found = exported(reader)
    assert found.keys() == names
    assert {name for name, each in found.items() if each.unit == "s"} == {
        name for name in names if name.endswith("_seconds")
    }


def test_a_batch_is_counted_and_its_lags_are_in_our_buckets(
    meter: Meter, reader: InMemoryMetricReader
) -> None:
    row = ROW._replace(waited=0.2, held=0.0)
    Metrics(meter).on_batch(
        "default", BatchResult(claimed=2, outcomes=[Published(row)] * 2, duration=0.1)
    )
    found = exported(reader)
    (count,) = found["celery_outbox_messages_published"].data.data_points
    assert (count.value, dict(count.attributes)) == (2, {**TAGS, "task_name": "shop.mail"})
    (lags,) = found["celery_outbox_publish_lag_seconds"].data.data_points
    assert (lags.count, lags.sum) == (2, pytest.approx(0.6))
    if TAKES_ADVICE:
        assert tuple(lags.explicit_bounds) == METRICS["publish.lag_seconds"].buckets


def test_no_gauge_outlives_its_relay(meter: Meter, reader: InMemoryMetricReader) -> None:
    relay = Relay()
    meter.watch(relay)
    assert "celery_outbox_relay_state" in exported(reader)
    del relay
    assert "celery_outbox_relay_state" not in exported(reader)


def test_a_forked_child_exports_no_gauges(meter: Meter, reader: InMemoryMetricReader) -> None:
    relay = Relay()
    meter.watch(relay)
    child = os.fork()
    if child == 0:
        os._exit("celery_outbox_relay_state" in exported(reader))
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert "celery_outbox_relay_state" in exported(reader)


def test_the_setting_names_it() -> None:
    meter = meter_for(SimpleNamespace(conf={"outbox_metrics": "opentelemetry"}))
    assert isinstance(meter, Meter)
    meter.count("messages.fenced", 1, TAGS)  # there is no meter provider: nothing happens
    assert meter.page() is None
