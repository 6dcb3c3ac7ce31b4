"""Metrics in prometheus_client's registry: names, values, and that no gauge outlives its relay."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families as parsed

from celery_outbox_steps.errors import ConfigurationError
from celery_outbox_steps.messages import BatchResult, ClaimedMessage, Published
from celery_outbox_steps.observe.metrics import METRICS, Gauge, Meter, Metrics, meter_for
from celery_outbox_steps.observe.recorder import Recorders
from celery_outbox_steps.observe.recorders import prometheus
from celery_outbox_steps.observe.recorders.prometheus import PrometheusSink
from celery_outbox_steps.settings import RelayConfig
from celery_outbox_steps.testing import MemoryStore, RecordingPublisher
from celery_outbox_steps.worker import thread as threads
from celery_outbox_steps.worker.gauges import STATES
from celery_outbox_steps.worker.group import RelayGroup
from celery_outbox_steps.worker.service import RelayService
from tests.helpers import wait_for
from tests.unit.test_service import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_outbox_steps.store import Sample

ROW = ClaimedMessage(1, "id", "task", "[]", "{}", "{}", None, 0, 1, None, None, None, None, 0.0)
COUNTED = {("messages.published", "shop.ship"): 3, ("messages.published", "shop.bill"): 2}
CHILDREN = """
import os
from types import SimpleNamespace
from celery_outbox_steps.observe.metrics import meter_for
meter = meter_for(SimpleNamespace(conf={"outbox_metrics": "prometheus"}))
for _ in range(2):
    if not os.fork():
        meter.count_messages({("messages.enqueued", "shop.ship"): 2}, {"database": "default"})
        os._exit(0)
    os.wait()
print(meter.page().body.decode())
"""


def meter(**options: Any) -> Meter:
    return Meter(PrometheusSink(CollectorRegistry()), **options)


def scrape(meter: Meter) -> dict[str, float]:
    """Every sample of a scrape, with its labels in the name. As in Prometheus, an empty label is
    none."""
    page = meter.page()
    assert page is not None
    assert page.content_type.startswith("text/plain; version=")
    return {
        f"{each.name}{sorted(filter(None, each.labels.values()))}": each.value
        for family in parsed(page.body.decode())
        for each in family.samples
        if not each.name.endswith("_created")
    }


def named(meter: Meter, name: str) -> dict[str, float]:
    return {key: value for key, value in scrape(meter).items() if key.startswith(f"{name}[")}


class Source:
    """A relay that tells what the test wants."""

    def __init__(self) -> None:
        self.told = [Gauge("rows", 7, {"database": "default", "state": "waiting"})]

    def gauges(self) -> list[Gauge]:
        return self.told


def test_counters_have_conventional_names_and_labels() -> None:
    made = meter()
    made.count_messages(COUNTED, {"database": "default"})
    name = "celery_outbox_messages_published_total"
    assert named(made, name) == {
        f"{name}['default', 'shop.bill']": 2,
        f"{name}['default', 'shop.ship']": 3,
    }


def test_without_task_names_there_is_one_series() -> None:
    made = meter(task_names=())
    made.count_messages(COUNTED, {"database": "default"})
    assert list(named(made, "celery_outbox_messages_published_total").values()) == [5]


def test_the_series_of_a_destination_are_apart_from_those_of_the_apps_own_broker() -> None:
    made = meter(task_names=())
    made.count_messages(COUNTED, {"database": "default"})
    made.count_messages(COUNTED, {"database": "default", "destination": "events"})
    name = "celery_outbox_messages_published_total"
    assert named(made, name) == {f"{name}['default']": 5, f"{name}['default', 'events']": 5}


def test_the_lag_of_each_message_is_in_the_histogram_and_the_duration_of_the_batch() -> None:
    made = meter()
    rows = [ROW._replace(waited=waited, held=held) for waited, held in ((1.0, 0.0), (70.0, 65.0))]
    result = BatchResult(tuple(map(Published, rows)), claimed=2, published=2, duration=0.25)
    Metrics(made).on_batch("default", result)
    lag = named(made, "celery_outbox_publish_lag_seconds_bucket")
    assert [lag[f"celery_outbox_publish_lag_seconds_bucket{sorted(['default', le])}"]
            for le in ("1.0", "2.5", "5.0", "10.0", "+Inf")] == [0, 1, 1, 2, 2]  # fmt: skip
    assert list(named(made, "celery_outbox_publish_lag_seconds_sum").values()) == [6.5]
    assert list(named(made, "celery_outbox_batch_duration_seconds_sum").values()) == [0.25]


def test_every_metric_of_the_table_that_has_a_name_in_prometheus_is_exported_under_it() -> None:
    made, source = meter(), Source()
    tags = {"database": "d", "task_name": "t", "state": "s", "kind": "k"}
    gauges = {name for name, each in METRICS.items() if each.kind == "gauge" and each.prometheus}
    source.told = [Gauge(name, 1, tags) for name in gauges]
    made.watch(source)
    for name, metric in METRICS.items():
        if metric.kind == "counter":
            made.count(name, 1, tags)
        made.distribute(name, [1.0], tags)
    names = {key.partition("[")[0] for key in scrape(made)}
    shown = {
        each.removesuffix("_bucket") for each in names if not each.endswith(("_sum", "_count"))
    }
    assert shown == {metric.prometheus for metric in METRICS.values() if metric.prometheus}
    assert {metric.kind for metric in METRICS.values() if metric.prometheus.endswith("_total")} == {
        "counter"
    }


def test_gauges_are_gone_with_their_source() -> None:
    made, source = meter(), Source()
    made.watch(source)
    assert list(named(made, "celery_outbox_rows").values()) == [7]
    source.told = []
    assert named(made, "celery_outbox_rows") == {}
    del source
    gc.collect()
    assert named(made, "celery_outbox_rows") == {}


def test_a_child_of_the_process_exports_no_gauge() -> None:
    made, source = meter(), Source()
    made.watch(source)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            made.distribute("publish.lag_seconds", [1.0], {"database": "default"})
            os.write(writer, f"{len(named(made, 'celery_outbox_rows'))}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"0"
    assert len(named(made, "celery_outbox_rows")) == 1
    os.close(reader)
    os.close(writer)


def test_in_multiprocess_mode_a_worker_exports_what_its_children_counted(tmp_path: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN], capture_output=True, text=True, check=True,
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
    )  # fmt: skip
    labels = 'database="default",destination="",task_name="shop.ship"'
    assert f"enqueued_total{{{labels}}} 4.0" in done.stdout


def test_every_app_of_a_process_counts_in_the_default_registry() -> None:
    app = SimpleNamespace(conf={"outbox_metrics": "prometheus"})
    name, labels = "celery_outbox_tasks_failed_total", {"database": "unit", "task_name": "t"}
    for _ in range(2):
        found = meter_for(app)
        assert found is not None
        found.count("tasks.failed", 1, labels)
    assert REGISTRY.get_sample_value(name, labels) == 2


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, prometheus.__name__)
    with pytest.raises(ConfigurationError, match=r"celery-outbox-steps\[prometheus\]"):
        meter_for(SimpleNamespace(conf={"outbox_metrics": "prometheus"}))


class Measured(Bench):
    """A service whose relay is measured, and samples often. One slot for all with one store."""

    def __init__(self, store: MemoryStore) -> None:
        self.meter = meter()
        self.service = RelayService(
            Celery("unit", set_as_current=False),
            store,
            RelayConfig(idle_time=0.05, relays=1, sample_interval=0.01),
            Recorders([Metrics(self.meter)]),
            lambda *_: RecordingPublisher(),
        )
        self.group = RelayGroup([self.service])
        self.meter.watch(self.group)

    def state(self) -> str:
        """The state whose series is 1."""
        series = named(self.meter, "celery_outbox_relay_state")
        (found,) = [key for key, value in series.items() if value]
        return next(each for each in STATES if f"'{each}'" in found)

    def rows(self) -> dict[str, float]:
        return named(self.meter, "celery_outbox_rows")


@pytest.fixture
def two() -> Iterator[tuple[Measured, Measured]]:
    store = MemoryStore()
    benches = Measured(store), Measured(store)
    yield benches
    for bench in benches:
        bench.stop(2)


def test_only_a_relay_at_work_shows_the_table(two: tuple[Measured, Measured]) -> None:
    first, second = two
    first.started()
    wait_for(lambda: len(first.rows()) == 4)
    second.started()
    wait_for(lambda: second.service.has_checked_in)
    assert second.state() == "standing by"
    assert second.rows() == {}

    first.service.pause("for the other one")
    wait_for(lambda: len(second.rows()) == 4, 20)
    assert first.state() == "paused"
    assert first.rows() == {}
    assert list(named(first.meter, "celery_outbox_paused").values()) == [1]


def test_a_relay_that_has_stopped_exports_no_gauge(two: tuple[Measured, Measured]) -> None:
    relay = two[0]
    relay.started()
    wait_for(lambda: len(relay.rows()) == 4)
    relay.stop()
    assert {key for key in scrape(relay.meter) if "fenced" not in key} == set()


def test_a_sample_that_is_out_of_date_is_not_shown(
    two: tuple[Measured, Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = two[0]
    relay.started()
    wait_for(lambda: len(relay.rows()) == 4)
    monkeypatch.setattr(threads, "SAMPLE_KEPT", -1.0)
    assert relay.rows() == {}


def test_a_scrape_while_a_sample_is_taken_shows_the_one_before() -> None:
    class SlowStore(MemoryStore):
        may_answer = threading.Event()
        asked = threading.Semaphore(0)

        def sample(self) -> Sample:
            self.asked.release()
            assert self.may_answer.wait(10)
            return super().sample()

    store = SlowStore()
    relay = Measured(store)
    relay.started()
    assert store.asked.acquire(timeout=10)
    assert relay.rows() == {}
    store.may_answer.set()
    wait_for(lambda: len(relay.rows()) == 4)
    store.may_answer.clear()
    while store.asked.acquire(blocking=False):  # those that were answered
        pass
    assert store.asked.acquire(timeout=10)
    assert len(relay.rows()) == 4
    store.may_answer.set()
    relay.stop(2)


def test_rows_that_were_fenced_are_counted_from_zero(two: tuple[Measured, Measured]) -> None:
    """Prometheus sees no increase in a counter that appears with its first value."""
    fenced = named(two[0].meter, "celery_outbox_messages_fenced_total")
    assert fenced == {"celery_outbox_messages_fenced_total['memory']": 0}
