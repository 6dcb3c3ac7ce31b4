"""The meter: what reaches a sink, under which tags, and what a broken sink can do (nothing)."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from celery_outbox_steps.errors import ConfigurationError
from celery_outbox_steps.messages import (
    BatchResult,
    ClaimedMessage,
    Dead,
    Deferred,
    Expired,
    Published,
    Retry,
)
from celery_outbox_steps.observe.metrics import METRICS, Meter, Metrics, meter_for
from celery_outbox_steps.testing import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Mapping

ROW = ClaimedMessage(1, "id", "task", "[]", "{}", "{}", None, 0, 1, None, None, None, None, 0.0)
TAGS = {"database": "default"}
COUNTS = {
    ("messages.published", "shop.ship_order"): 3,
    ("messages.published", "shop.bill_order"): 2,
    ("messages.failed", "mail.send"): 1,
}


class Kept:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def increment(self, name: str, value: int, tags: Mapping[str, str]) -> None:
        self.calls.append((name, value, tags.get("task_name")))

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        self.calls.append((name, value))

    def timing(self, name: str, milliseconds: float, tags: Mapping[str, str]) -> None:
        self.calls.append((name, milliseconds))


class Broken:
    """A sink without anything that a sink has."""


def conf(**values: Any) -> Any:
    return SimpleNamespace(conf={f"outbox_{name}": value for name, value in values.items()})


def test_counters_carry_the_task_name() -> None:
    sink = Kept()
    Meter(sink).count_messages(COUNTS, TAGS)
    assert sink.calls == [
        ("messages.published", 3, "shop.ship_order"),
        ("messages.published", 2, "shop.bill_order"),
        ("messages.failed", 1, "mail.send"),
    ]


def test_with_an_empty_list_there_is_no_tag_and_counters_are_added_up() -> None:
    sink = Kept()
    Meter(sink, task_names=()).count_messages(COUNTS, TAGS)
    assert sink.calls == [("messages.published", 5, None), ("messages.failed", 1, None)]


def test_the_allow_list_takes_names_and_patterns() -> None:
    sink = Kept()
    Meter(sink, task_names=("mail.*", "shop.ship_order")).count_messages(COUNTS, TAGS)
    assert sink.calls == [
        ("messages.published", 3, "shop.ship_order"),
        ("messages.published", 2, "other"),
        ("messages.failed", 1, "mail.send"),
    ]


def test_every_metric_that_is_pushed_is_sent_with_its_kind_and_tags_and_no_other() -> None:
    sent: dict[str, tuple[str, tuple[str, ...]]] = {}

    class Catalogue:
        def increment(self, name: str, value: int, tags: Mapping[str, str]) -> None:
            sent[name] = "counter", tuple(tags)

        def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
            sent[name] = "gauge", tuple(tags)

        def timing(self, name: str, milliseconds: float, tags: Mapping[str, str]) -> None:
            sent[name] = "timing", tuple(tags)

    metrics = Metrics(Meter(Catalogue()), "events")
    metrics.on_enqueued("default", {"shop.ship_order": 1}, "events")
    Metrics(Meter(Catalogue())).on_failed_task("default", "shop.ship_order")
    failed = Retry(ROW, "", 1.0), Dead(ROW, "", 1), Deferred(ROW, "", 1.0)
    outcomes = (Published(ROW), *failed, Expired(ROW))
    metrics.on_batch("default", BatchResult(outcomes, claimed=5, fenced=1))
    metrics.on_sample("default", MemoryStore().sample())
    assert sent == {
        name: (metric.kind, metric.tags) for name, metric in METRICS.items() if metric.pushed
    }


def test_what_is_about_the_apps_own_broker_has_no_destination() -> None:
    """Not even an empty one: dashboards that know no destinations select their series as before."""
    seen: dict[str, Mapping[str, str]] = {}

    class Tags:
        def increment(self, name: str, value: int, tags: Mapping[str, str]) -> None:
            seen[name] = tags

        def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
            seen[f"{name} {tags.get('state', '')}"] = tags

        timing = gauge

    metrics = Metrics(Meter(Tags()))
    metrics.on_enqueued("default", {"shop.ship_order": 1})
    metrics.on_batch("default", BatchResult((Published(ROW),), claimed=1, fenced=1))
    metrics.on_sample("default", MemoryStore().sample())
    assert not any("destination" in tags for tags in seen.values())
    assert "rows held_back" not in seen


def test_several_sinks_get_the_same_and_one_that_breaks_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, other = Kept(), Kept()
    meter = Meter(one, Broken(), other)  # type: ignore[arg-type]
    with caplog.at_level(logging.DEBUG, "celery_outbox"):
        meter.count_messages(COUNTS, TAGS)
        meter.distribute("publish.lag_seconds", [1.0], {})
    assert one.calls == other.calls
    assert len(one.calls) == 3
    assert len(caplog.records) == 1
    assert meter.page() is None


def test_a_broken_sink_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    meter = Meter(Broken())  # type: ignore[arg-type]
    with caplog.at_level(logging.DEBUG, "celery_outbox"):
        meter.count_messages(COUNTS, TAGS)
        meter.measure("queue.depth", 1, {})
        meter.time("batch.duration_ms", 1.0, {})
    (record,) = caplog.records
    assert record.__dict__["event"] == "celery_outbox_metrics_failed"
    assert record.exc_info is not None


def test_metrics_are_off_by_default() -> None:
    assert meter_for(conf()) is None


def test_the_sink_is_a_dotted_path_or_a_callable() -> None:
    assert meter_for(conf(metrics="builtins:repr")) is not None  # anything that is callable
    sink = Kept()
    meter = meter_for(conf(metrics=lambda app: sink, metrics_task_names=[]))
    assert meter is not None
    meter.count_messages(COUNTS, TAGS)
    assert sink.calls[0] == ("messages.published", 5, None)


def test_a_factory_may_decline() -> None:
    assert meter_for(conf(metrics=lambda app: None)) is None


@pytest.mark.parametrize("together", [list, tuple])
def test_several_sinks_may_be_named(together: Any) -> None:
    one, other = Kept(), Kept()
    meter = meter_for(
        conf(metrics=together([lambda app: one, lambda app: None, lambda app: other]))
    )
    assert meter is not None
    meter.count("messages.fenced", 1, {})
    assert one.calls == other.calls == [("messages.fenced", 1, None)]


@pytest.mark.parametrize(
    "chosen", ["no.such.module:sink", "celery_outbox_steps.observe.metrics:nothing"]
)
def test_a_path_that_leads_nowhere_is_refused_at_start(chosen: str) -> None:
    with pytest.raises(ConfigurationError, match="CELERY_OUTBOX_METRICS"):
        meter_for(conf(metrics=chosen))


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datadog.dogstatsd", None)
    with pytest.raises(ConfigurationError, match=r"celery-outbox-steps\[datadog\]"):
        meter_for(conf(metrics="datadog"))
