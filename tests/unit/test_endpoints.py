"""`/livez`, `/readyz` and `/metrics`: the verdicts on a real service in each of its situations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.observe.metrics import Meter
from celery_outbox_steps.observe.recorders.prometheus import PrometheusSink
from celery_outbox_steps.worker import thread as threads
from celery_outbox_steps.worker.endpoints import TEXT, Endpoints
from celery_outbox_steps.worker.group import RelayGroup
from tests.helpers import wait_for
from tests.unit.test_service import Bench, SlowPublisher

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.stop(2)


def ask(path: str, *benches: Bench, meter: Meter | None = None) -> tuple[int, str]:
    group = RelayGroup([bench.service for bench in benches])
    found = Endpoints(group, meter).answer(path)
    return int(found.status), found.body.decode()


def is_ready(*benches: Bench) -> bool:
    return ask("/readyz", *benches)[0] == 200


def test_a_relay_at_work_is_alive_and_ready(bench: Bench) -> None:
    bench.started()
    wait_for(lambda: is_ready(bench))
    assert ask("/readyz", bench) == (200, "memory: relaying\n")
    assert ask("/livez", bench) == (200, "alive\n")


def test_before_its_first_check_in_a_relay_is_alive_and_not_ready(bench: Bench) -> None:
    assert ask("/livez", bench)[0] == 200
    assert ask("/readyz", bench) == (503, "memory: not started\n")


def test_a_broker_that_is_away_makes_it_unready_and_not_dead(bench: Bench) -> None:
    bench.started(broker=False)
    wait_for(lambda: ask("/readyz", bench)[1] == "memory: waiting for the broker\n")
    assert ask("/readyz", bench)[0] == 503
    assert ask("/livez", bench)[0] == 200


def test_a_database_that_is_away_makes_it_unready_and_not_dead(bench: Bench) -> None:
    bench.store.error = StoreError("password=secret")
    bench.started()
    wait_for(lambda: ask("/readyz", bench) == (503, "memory: backing off after an error\n"))
    assert ask("/livez", bench)[0] == 200


def test_a_pause_makes_it_unready_with_the_reason(bench: Bench) -> None:
    bench.started()
    wait_for(lambda: is_ready(bench))
    bench.service.pause("main\ntenance")
    assert ask("/readyz", bench) == (503, "memory: paused: main\ntenance\n")
    assert ask("/livez", bench)[0] == 200
    bench.service.resume()
    wait_for(lambda: is_ready(bench))


def test_a_relay_that_stands_by_is_ready() -> None:
    first = Bench(relays=1)
    second = Bench(store=first.store, relays=1)
    try:
        first.started()
        wait_for(lambda: is_ready(first))
        second.started()
        wait_for(lambda: is_ready(second))
        assert ask("/readyz", second) == (200, "memory: standing by\n")
    finally:
        second.stop(2)
        first.stop(2)


def test_a_relay_that_hangs_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(SlowPublisher(), send_timeout=0.01)
    bench.add()
    bench.started()
    assert bench.publisher.sending.wait(10)
    assert ask("/livez", bench)[0] == 200
    monkeypatch.setattr(threads, "LONGEST_STILL", 0.0)
    wait_for(lambda: ask("/livez", bench)[0] == 503)
    assert ask("/livez", bench)[1] == "memory: the relay's loop has not moved for 0 s\n"
    assert ask("/readyz", bench)[0] == 503
    bench.publisher.go.release()
    bench.stop()


def test_an_idle_relay_does_not_hang() -> None:
    bench = Bench(idle_time=60.0)
    try:
        bench.started()
        wait_for(lambda: is_ready(bench))
        wait_for(lambda: bench.service.seconds_still > threads.LIVENESS_INTERVAL / 2, 10)
        wait_for(lambda: bench.service.seconds_still < threads.LIVENESS_INTERVAL / 2, 10)
    finally:
        bench.stop(2)


def test_a_thread_that_has_ended_is_dead(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.started()
    wait_for(lambda: is_ready(bench))
    bench.stop(2)
    assert ask("/livez", bench)[0] == 200  # it was stopped
    with monkeypatch.context() as patched:
        patched.setattr(bench.service, "_stopping", SimpleNamespace(is_set=lambda: False))
        assert ask("/livez", bench) == (503, "memory: the relay's thread has ended\n")


def test_a_worker_that_drains_is_alive_and_not_ready(bench: Bench) -> None:
    bench.started()
    wait_for(lambda: is_ready(bench))
    group = RelayGroup([bench.service])
    group.drain()
    endpoints = Endpoints(group, None)
    assert endpoints.answer("/readyz") == (503, b"memory: the worker is stopping\n", TEXT)
    assert endpoints.answer("/livez").status == 200
    bench.stop(2)
    assert ask("/readyz", bench) == (503, "memory: stopped\n")


def test_one_relay_that_is_not_ready_makes_the_worker_unready(bench: Bench) -> None:
    other = Bench()
    try:
        bench.started()
        other.started(broker=False)
        wait_for(lambda: is_ready(bench))
        wait_for(lambda: "waiting" in ask("/readyz", bench, other)[1])
        assert ask("/readyz", bench, other)[0] == 503
    finally:
        other.stop(2)


def test_metrics_without_the_sink_name_what_to_do(bench: Bench) -> None:
    status, text = ask("/metrics", bench)
    assert status == 404
    assert 'CELERY_OUTBOX_METRICS to "prometheus"' in text
    assert 'pip install "celery-outbox-steps[prometheus]"' in text


def test_an_unknown_path_names_the_known_ones(bench: Bench) -> None:
    status, text = ask("/healthz", bench)
    assert status == 404
    assert "/livez, /readyz, /metrics" in text


def test_a_scrape_shows_the_state_without_a_broker(bench: Bench) -> None:
    meter = Meter(PrometheusSink(CollectorRegistry()))
    group = RelayGroup([bench.service])
    meter.watch(group)
    bench.started(broker=False)
    wait_for(lambda: bench.service.state == "waiting for the broker")
    text = Endpoints(group, meter).answer("/metrics").body.decode()
    labels = 'database="memory",destination="",state="waiting for the broker"'
    assert f"celery_outbox_relay_state{{{labels}}} 1.0" in text
    assert 'celery_outbox_broker_up{database="memory"} 0.0' in text
