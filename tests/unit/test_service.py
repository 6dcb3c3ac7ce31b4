"""The thread around the relay: broker, pause, stop, errors, liveness, wake-ups."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu.utils.json import dumps

from celery_outbox_steps import places, wakeups
from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.messages import BatchResult
from celery_outbox_steps.observe.journal import Journal
from celery_outbox_steps.observe.recorder import NO_RECORDERS, Recorder, Recorders
from celery_outbox_steps.rates import Rate
from celery_outbox_steps.settings import RelayConfig
from celery_outbox_steps.testing import MemoryStore, RecordingPublisher
from celery_outbox_steps.worker import membership
from celery_outbox_steps.worker.service import RelayService
from django_integration.store.listen import WakePipe
from tests.helpers import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPTIONS = dumps(
    {"headers": {}, "properties": {}, "priority": 0, "exchange": "", "routing_key": "q"}
)


class BrittleStore(MemoryStore):
    """A database that is away while `error` is set."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.error: Exception | None = None
        self.settle_error: Exception | None = None

    def claim(self, *args: Any, **kwargs: Any) -> Any:
        if self.error is not None:
            raise self.error
        return super().claim(*args, **kwargs)

    def settle(self, *args: Any) -> int:
        if self.settle_error is not None:
            raise self.settle_error
        return super().settle(*args)


class SlowPublisher(RecordingPublisher):
    """Waits for the test before every message."""

    def __init__(self) -> None:
        super().__init__()
        self.sending = threading.Event()
        self.go = threading.Semaphore(0)

    def publish(self, messages: Any, timeout: float) -> Any:
        for receipt in super().publish(messages, timeout):
            self.sending.set()
            self.go.acquire()
            yield receipt


class Bench:
    """A service and its surroundings."""

    def __init__(
        self,
        publisher: RecordingPublisher | None = None,
        store: BrittleStore | None = None,
        recorders: Recorders = NO_RECORDERS,
        **config: Any,
    ) -> None:
        self.store = store or BrittleStore()
        self.publisher = publisher or RecordingPublisher()
        self.service = RelayService(
            Celery("unit", set_as_current=False),
            self.store,
            RelayConfig(**{"idle_time": 0.05, **config}),
            recorders,
            publisher_factory=lambda app, declare: self.publisher,
        )

    def add(self, count: int = 1) -> None:
        for _ in range(count):
            self.store.add(options=OPTIONS)

    def started(self, *, broker: bool = True) -> Bench:
        self.service.start()
        if broker:
            self.service.broker_up()
        return self

    def wait_until_published(self, count: int) -> None:
        wait_for(lambda: len(self.publisher.published) >= count, 10)

    def stop(self, timeout: float | None = None) -> None:
        self.service.ask_to_stop(timeout)
        self.service.join()

    @property
    def counters(self) -> dict[str, int]:
        return self.service.info()["counters"]  # type: ignore[no-any-return]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.stop(2)


def test_relays_once_started_and_the_broker_is_up(bench: Bench) -> None:
    bench.add(3)
    bench.started().wait_until_published(3)
    wait_for(lambda: bench.service.state == "relaying")
    assert bench.counters["published"] == 3


def test_the_broker_may_be_up_before_the_thread_runs(bench: Bench) -> None:
    bench.add()
    bench.service.broker_up()
    assert bench.service.state == "not started"
    bench.started(broker=False).wait_until_published(1)


def test_nothing_is_claimed_while_the_broker_is_down(bench: Bench) -> None:
    bench.started(broker=False)
    bench.add()
    wait_for(lambda: bench.service.state == "waiting for the broker")
    assert next(iter(bench.store.rows.values())).claimed_by is None
    bench.service.broker_up()
    bench.wait_until_published(1)
    bench.service.broker_down()
    assert bench.service.state == "waiting for the broker"


def test_a_broker_that_goes_down_in_mid_batch_lets_it_finish() -> None:
    bench = Bench(SlowPublisher())
    bench.add(2)
    bench.started()
    assert bench.publisher.sending.wait(10)
    bench.service.broker_down()
    bench.publisher.go.release(2)
    wait_for(lambda: bench.store.rows == {})
    bench.add()
    bench.stop()
    assert len(bench.publisher.published) == 2, "a stop without a broker sends nothing"


def test_pause_and_resume(bench: Bench) -> None:
    bench.started()
    bench.service.pause("maintenance")
    bench.add()
    info = bench.service.info()
    assert (info["state"], info["pause_reason"]) == ("paused", "maintenance")
    bench.service.resume()
    bench.wait_until_published(1)
    assert bench.service.info()["pause_reason"] is None


def test_remote_control_may_ask_while_the_relay_works() -> None:
    journal = Journal("default", "me")
    batch = BatchResult(claimed=1, published=1)
    for _ in range(2000):
        journal.batch(batch)
    stop = threading.Event()

    def relay() -> None:
        while not stop.is_set():
            journal.batch(batch)

    def collecting(phase: str, info: dict[str, int]) -> None:
        """Code that runs in the middle of anything: while it does, threads take turns."""
        time.sleep(0)

    worker = threading.Thread(target=relay)
    before, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.callbacks.append(collecting)
    try:
        worker.start()
        gc.set_threshold(1)
        for _ in range(300):
            assert journal.rate() >= 0
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collecting)
        stop.set()
        worker.join(5)
        sys.setswitchinterval(before)


class TestStop:
    def test_one_last_tick_for_what_the_last_tasks_enqueued(self) -> None:
        bench = Bench(idle_time=60).started()
        wait_for(lambda: bench.service.state == "relaying")
        bench.add(2)
        bench.stop()
        assert len(bench.publisher.published) == 2
        assert bench.service.state == "stopped"
        assert bench.publisher.closed

    def test_a_cold_stop_sends_nothing_more_and_gives_the_rest_back(self) -> None:
        bench = Bench(SlowPublisher())
        bench.add(5)
        bench.started()
        assert bench.publisher.sending.wait(10)
        bench.service.ask_to_stop(2)
        bench.publisher.go.release(5)
        bench.service.join()
        assert bench.service.state == "stopped"
        assert len(bench.publisher.published) == 1
        assert len(bench.store.rows) == 4
        assert all(row.claimed_by is None for row in bench.store.rows.values())

    def test_a_later_call_can_only_make_it_more_urgent(self) -> None:
        bench = Bench(SlowPublisher())
        bench.add()
        bench.started()
        assert bench.publisher.sending.wait(10)
        begin = time.monotonic()
        bench.stop(0.2)
        bench.stop()
        assert time.monotonic() - begin < 5
        bench.publisher.go.release(1)

    def test_a_stop_settles_what_it_published_once_the_database_is_back(self) -> None:
        bench = Bench(idle_time=60)
        bench.store.settle_error = StoreError("away")
        bench.add(2)
        bench.started()
        wait_for(lambda: bench.counters.get("errors", 0) >= 1)
        bench.service.ask_to_stop()
        wait_for(lambda: bench.counters["errors"] >= 2)
        bench.store.settle_error = None
        bench.service.join()
        assert bench.store.rows == {}
        assert len(bench.publisher.published) == 2
        assert bench.counters["published"] == 2

    def test_a_stop_does_not_wait_for_a_database_that_stays_away(self) -> None:
        bench = Bench(idle_time=60, shutdown_timeout=1.5)
        bench.store.settle_error = StoreError("away")
        bench.add()
        bench.started()
        wait_for(lambda: bench.counters.get("errors", 0) >= 1)
        begin = time.monotonic()
        bench.stop()
        assert 1 < time.monotonic() - begin < 5

    def test_stop_before_start_is_harmless(self, bench: Bench) -> None:
        bench.stop()
        assert bench.service.state == "stopped"


class TestErrors:
    @pytest.mark.parametrize("error", [StoreError("away"), RuntimeError("a bug")])
    def test_the_loop_rests_and_recovers(
        self, error: Exception, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "celery_outbox")
        bench.store.error = error
        bench.add()
        bench.started()
        wait_for(lambda: bench.counters.get("errors", 0) >= 2, 10)
        assert bench.service.state == "backing off after an error"
        assert bench.counters["errors"] < 5, "it does not pause"
        bench.store.error = None
        bench.wait_until_published(1)
        wait_for(lambda: bench.service.state == "relaying")
        assert str(error) in bench.service.info()["last_error"]
        wait_for(lambda: "celery_outbox_relay_recovered" in caplog.text)
        failures = [each for each in caplog.records if each.event == "celery_outbox_relay_error"]
        assert "trying again in 0.5 s" in failures[0].getMessage()

    def test_a_stop_while_the_database_is_away_is_no_recovery(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "celery_outbox")
        bench = Bench(shutdown_timeout=2)
        bench.store.error = StoreError("away")
        bench.add()
        bench.started()
        wait_for(lambda: bench.counters.get("errors", 0) >= 1)
        bench.stop()
        wait_for(lambda: "celery_outbox_relay_stopped" in caplog.text)
        assert "celery_outbox_relay_recovered" not in caplog.text

    @pytest.mark.parametrize("raised", [RuntimeError("no"), SystemExit(1)], ids=repr)
    def test_a_log_handler_that_raises_does_not_end_the_relay(
        self, raised: BaseException, bench: Bench
    ) -> None:
        class Raising(logging.Handler):
            def handle(self, record: logging.LogRecord) -> bool:
                raise raised

        handler = Raising()
        logging.getLogger("celery_outbox").addHandler(handler)
        try:
            bench.store.error = StoreError("away")
            bench.add()
            bench.started()
            wait_for(lambda: bench.counters.get("errors", 0) >= 2, 10)
            bench.store.error = None
            bench.wait_until_published(1)
        finally:
            logging.getLogger("celery_outbox").removeHandler(handler)
        wait_for(lambda: bench.service.state == "relaying")

    def test_a_thread_that_ended_by_itself_is_not_called_new(self, bench: Bench) -> None:
        bench.service._thread = threading.Thread(target=lambda: None)
        bench.started(broker=False)
        bench.service._thread.join(5)
        assert bench.service.state == "crashed"

    def test_what_was_published_is_settled_even_if_the_broker_is_gone_by_then(
        self, bench: Bench
    ) -> None:
        """Left until the broker is back, its lease would run out and others publish it again."""
        bench.store.settle_error = StoreError("away")
        bench.add()
        bench.started().wait_until_published(1)
        bench.service.broker_down()
        bench.service.pause("maintenance")
        bench.store.settle_error = None
        wait_for(lambda: bench.store.rows == {})
        assert bench.counters["published"] == 1

    def test_the_last_error_of_a_message_is_shown(self, bench: Bench) -> None:
        bench.publisher.down = ConnectionRefusedError("connection refused")
        bench.add()
        bench.started()
        wait_for(lambda: bench.service.info()["last_error"])
        assert "connection refused" in bench.service.info()["last_error"]

    def test_the_breaker_shows_in_the_state(self, bench: Bench) -> None:
        bench.publisher.down = ConnectionRefusedError("connection refused")
        bench.add()
        bench.started()
        wait_for(lambda: bench.service.state == "cooling down after an outage", 10)


class TestLiveness:
    def test_touched_while_idle_busy_and_without_a_broker(self, tmp_path: Path) -> None:
        file = tmp_path / "alive"
        bench = Bench(idle_time=60, liveness_file=str(file)).started(broker=False)
        self._wait_for_touch(file)
        bench.service.broker_up()
        self._wait_for_touch(file)
        bench.store.error = StoreError("away")
        bench.store.wake()
        self._wait_for_touch(file)
        bench.stop(1)

    def test_a_path_that_can_not_be_one_does_not_end_the_relay(self) -> None:
        bench = Bench(liveness_file="a\x00b").started()
        wait_for(lambda: bench.counters.get("liveness_errors", 0) >= 1, 10)
        bench.add()
        bench.wait_until_published(1)
        bench.stop(1)

    def test_not_touched_while_stuck(self, tmp_path: Path) -> None:
        file = tmp_path / "alive"
        bench = Bench(SlowPublisher(), liveness_file=str(file))
        bench.add()
        bench.started()
        assert bench.publisher.sending.wait(10)
        file.unlink(missing_ok=True)
        begin = time.monotonic()
        wait_for(lambda: file.exists() or time.monotonic() - begin > 2.2)
        assert not file.exists()
        bench.publisher.go.release(1)
        wait_for(file.exists)
        bench.stop(1)

    def test_a_disk_that_refuses_stops_no_relay_and_is_logged_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench = Bench(liveness_file=str(tmp_path / "missing" / "alive")).started()
        wait_for(lambda: bench.counters.get("liveness_errors", 0) >= 2, 10)
        bench.add()
        bench.wait_until_published(1)
        bench.stop()
        assert caplog.text.count("celery_outbox_liveness_failed") == 1

    def _wait_for_touch(self, file: Path) -> None:
        file.unlink(missing_ok=True)
        wait_for(file.exists, 10, "the liveness file is not touched")


def test_a_commit_in_this_process_wakes_an_idle_relay() -> None:
    bench = Bench(idle_time=60).started()
    wait_for(lambda: bench.service.state == "relaying")
    bench.add()
    wakeups.wake("memory")
    bench.wait_until_published(1)
    bench.stop(1)


def test_a_commit_in_a_forked_child_wakes_the_relay_of_its_parent() -> None:
    class PipeStore(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.pipe = WakePipe()

        wait = property(lambda self: self.pipe.wait)
        wake = property(lambda self: self.pipe.write)

    store = PipeStore()
    service = RelayService(
        Celery("unit", set_as_current=False), store, RelayConfig(),
        publisher_factory=lambda app, declare: RecordingPublisher(),
    )  # fmt: skip
    child = os.fork()
    if not child:
        wakeups.wake("memory")
        os._exit(0)
    os.waitpid(child, 0)
    assert store.wait(5)
    assert service.state == "not started"


def test_a_child_that_closed_what_it_inherited_writes_to_no_other_descriptor() -> None:
    pipe = WakePipe()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writer, pipe._writer)  # the number belongs to something else now
        pipe.write()
        os.close(pipe._writer)
        pipe.write()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(writer)
    assert os.read(reader, 1) == b""
    assert not pipe.wait(0)
    os.close(reader)


def test_a_rate_that_was_removed_holds_nothing_any_more(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rows had turns, perhaps in weeks."""
    caplog.set_level(logging.INFO, logger="celery_outbox")
    bench.add(3)
    granted = bench.store.pace(Rate("*", 1 / 3600), bench.store.claim(10, 60, "before"), "before")
    assert len(granted) == 1
    bench.started().wait_until_published(2)
    assert "2 messages waited for turns by other rates" in caplog.text


def test_an_idle_relay_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "celery_outbox")
    bench = Bench(idle_time=0.01).started()
    wait_for(lambda: "celery_outbox_relay_started" in caplog.text)
    begin = time.monotonic()
    wait_for(lambda: time.monotonic() - begin > 0.3)
    bench.stop()
    assert [record.event for record in caplog.records] == [
        "celery_outbox_relay_started",
        "celery_outbox_relay_at_work",
        "celery_outbox_relay_stopped",
    ]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Bench, Bench]]:
    """Two relays and one slot, in a fleet that is in a hurry."""
    for name in ("REFRESH", "TURN"):
        monkeypatch.setattr(places, name, 0.05)
    monkeypatch.setattr(membership, "PATIENCE", 0.3)
    first = Bench(relays=1, broker_outage_cooldown=0.05)
    second = Bench(store=first.store.beside(), relays=1)
    first.started()
    wait_for(lambda: first.service.at_work)
    yield first, second.started()
    for bench in (first, second):
        bench.stop(2)


def test_a_relay_from_which_the_broker_accepts_nothing_gives_its_slot_up(
    two: tuple[Bench, Bench],
) -> None:
    first, second = two
    wait_for(lambda: second.service.state == "standing by")
    first.publisher.down = ConnectionRefusedError()
    first.add(3)
    wait_for(lambda: second.service.state == "relaying")
    second.wait_until_published(3)
    assert first.service.state == "standing by"
    first.publisher.heal()
    first.service._membership._rests_until = float("-inf")
    second.stop()
    wait_for(lambda: first.service.state == "relaying")


def test_a_relay_that_fails_in_a_loop_gives_its_slot_up(two: tuple[Bench, Bench]) -> None:
    first, second = two
    first.store.error = MemoryError()
    wait_for(lambda: second.service.state == "relaying")
    first.add(2)
    second.wait_until_published(2)
    seen = {each.member.relay_id: each for each in first.store.fleet().members}
    assert seen[first.service.relay_id].member.state == "backing off after an error"


def test_a_standby_without_a_broker_takes_no_slot(two: tuple[Bench, Bench]) -> None:
    first, second = two
    wait_for(lambda: second.service.state == "standing by")
    second.service.broker_down()
    begin = time.monotonic()
    wait_for(lambda: time.monotonic() - begin > 0.4)
    first.stop()
    wait_for(lambda: first.service.state == "stopped")
    begin = time.monotonic()
    wait_for(lambda: time.monotonic() - begin > 0.4)
    assert second.service.state == "waiting for the broker"
    assert not second.service.at_work
    second.service.broker_up()
    wait_for(lambda: second.service.state == "relaying")


def test_a_child_inherits_no_lock_that_a_recorder_holds() -> None:
    """Such as the one of a metrics library: the child would wait for it for ever."""
    lock, held = threading.Lock(), threading.Event()

    class Locks(Recorder):
        def on_batch(self, database: str, result: BatchResult) -> None:
            with lock:
                held.set()
                time.sleep(0.2)  # the fork below begins meanwhile

    bench = Bench(recorders=Recorders([Locks()]))
    bench.add()
    bench.started()
    assert held.wait(10)
    child = os.fork()
    if not child:
        os._exit(0 if lock.acquire(blocking=False) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    bench.stop(2)
