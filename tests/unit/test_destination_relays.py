"""The relays for destinations: each in its own thread, started, woken and paused by their group."""

from __future__ import annotations

import os
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu.utils.json import dumps

from celery_outbox_steps import wakeups
from celery_outbox_steps.destinations import destinations
from celery_outbox_steps.envelope import EVENT_VERSION
from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.fleet import Pause
from celery_outbox_steps.publishers.broker import Broker
from celery_outbox_steps.publishers.pool import Deadline, pooled_producer
from celery_outbox_steps.settings import RelayConfig
from celery_outbox_steps.testing import MemoryStore, RecordingPublisher
from celery_outbox_steps.worker import destinations as module
from celery_outbox_steps.worker import thread as threads
from celery_outbox_steps.worker.destinations import DestinationGroup, DestinationRelay
from celery_outbox_steps.worker.endpoints import Endpoints
from celery_outbox_steps.worker.group import RelayGroup
from celery_outbox_steps.worker.service import RelayService
from tests.helpers import wait_for
from tests.unit.test_service import SlowPublisher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_outbox_steps.testing.memory_lane import MemoryLane

OPTIONS = dumps({"source": "/unit", "time": "2026-01-01T00:00:00.000+00:00"})
DOWN = ConnectionRefusedError("nobody listens")
STEADY = {"idle_time": 60.0}
"""Nothing is found by polling: only wake-ups count."""


class Lane:
    """The rows of one destination, on a database that is away while `error` is set."""

    def __init__(self, lane: MemoryLane) -> None:
        self.error: Exception | None = None
        self.claims = 0
        self._lane = lane

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane, name)

    def claim(self, *args: Any, **kwargs: Any) -> Any:
        self.claims += 1
        if self.error is not None:
            raise self.error
        return self._lane.claim(*args, **kwargs)


class Deliveries:
    """`MemoryDeliveries` that counts its closes, and fails when it is told to."""

    def __init__(self, store: MemoryStore) -> None:
        assert store.deliveries is not None
        self._deliveries = store.deliveries
        self.lanes: dict[str, Lane] = {}
        self.closed = 0
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._deliveries, name)

    def lane(self, destination: str) -> Lane:
        return self.lanes.setdefault(destination, Lane(self._deliveries.lane(destination)))

    def pauses(self) -> Any:
        if self.error is not None:
            raise self.error
        return self._deliveries.pauses()

    def close(self) -> None:
        self.closed += 1


class Bench:
    """A group of relays for destinations `a` and `b`, and the broker's side of each."""

    def __init__(self, a: RecordingPublisher | None = None, **config: Any) -> None:
        self.store = MemoryStore()
        self.deliveries = Deliveries(self.store)
        self.publishers = {"a": a or RecordingPublisher(), "b": RecordingPublisher()}
        self.config = RelayConfig(**{"idle_time": 0.05, **config})
        self.group = DestinationGroup(self.deliveries, [self._relay("a"), self._relay("b")])
        self.a, self.b = self.group.relays

    def _relay(self, name: str) -> DestinationRelay:
        (destination,) = destinations({name: {"url": "memory://", "exchange": name}}).values()
        return DestinationRelay(
            Celery("unit", set_as_current=False), destination, self.deliveries, self.config,
            broker=Broker(destination),
            publisher_factory=lambda app, declare: self.publishers[name],
        )  # fmt: skip

    def add(self, destination: str, count: int = 1, **columns: Any) -> None:
        for _ in range(count):
            self.store.add(
                "order.paid", destination=destination, options=OPTIONS,
                schema_version=EVENT_VERSION, args="{}", **columns,
            )  # fmt: skip

    def started(self) -> Bench:
        self.group.work(at_work=True)
        wait_for(lambda: self.a.state == self.b.state == "relaying")
        return self

    def wake(self) -> None:
        wakeups.wake(wakeups.for_destinations("memory"))

    def published(self, destination: str) -> int:
        return len(self.publishers[destination].published)

    def wait_until_published(self, destination: str, count: int) -> None:
        wait_for(lambda: self.published(destination) >= count, 10)

    def wait_until_at_rest(self) -> None:
        """Until each relay has found nothing."""
        lanes = self.deliveries.lanes.values()
        wait_for(lambda: all(lane.claims for lane in lanes))

    def stop(self, sending: float = 1.0, timeout: float = 2.0) -> None:
        self.group.ask_to_stop(sending, timeout)
        self.group.join()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.stop(0)


def test_nothing_runs_before_the_worker_has_a_slot(bench: Bench) -> None:
    bench.add("a")
    assert bench.group.states() == {}
    assert not bench.group.is_started
    assert [relay.is_started for relay in bench.group.relays] == [False, False]


def test_each_publishes_its_own_rows(bench: Bench) -> None:
    bench.add("a", 3)
    bench.add("b", 2)
    bench.started()
    bench.wait_until_published("a", 3)
    bench.wait_until_published("b", 2)
    assert (bench.published("a"), bench.published("b")) == (3, 2)
    assert bench.store.rows == {}


def test_one_that_hangs_delays_no_other() -> None:
    slow = SlowPublisher()
    bench = Bench(slow)
    bench.add("a")
    bench.group.work(at_work=True)
    assert slow.sending.wait(10)
    bench.add("b", 5)
    bench.wait_until_published("b", 5)
    slow.go.release()
    bench.stop()
    assert bench.store.rows == {}


def test_one_whose_broker_is_away_cools_down_alone(bench: Bench) -> None:
    bench.publishers["a"].down = DOWN
    bench.add("a")
    bench.started()
    wait_for(lambda: bench.a.state == "cooling down after an outage")
    bench.add("b")
    bench.wait_until_published("b", 1)
    assert bench.b.state == "relaying"
    assert [row.retries for row in bench.store.rows.values()] == [0]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_one_whose_broker_is_silent_delays_no_fork_for_long() -> None:
    """While it is known to be away, the pool gets its children at once."""
    slow = SlowPublisher()
    bench = Bench(slow, broker_outage_cooldown=0.05)
    slow.down = DOWN
    bench.add("a")
    bench.group.work(at_work=True)
    wait_for(lambda: bench.a.breaker_is_open)
    slow.heal()
    assert slow.sending.wait(10), "the probe hangs"
    begin = monotonic()
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert monotonic() - begin < 0.6
    slow.go.release()
    bench.stop()


def test_a_commit_in_this_process_wakes_them() -> None:
    bench = Bench(**STEADY).started()
    bench.wait_until_at_rest()
    bench.add("a")
    bench.add("b")
    bench.wake()
    bench.wait_until_published("a", 1)
    bench.wait_until_published("b", 1)
    bench.stop(0)


def test_a_wake_up_does_not_cut_the_pause_after_an_error_short() -> None:
    bench = Bench(**STEADY).started()
    bench.deliveries.lanes["a"].error = StoreError("away")
    bench.wake()
    wait_for(lambda: bench.a.journal.counters["errors"] >= 1)
    begin = monotonic()

    def woken_for_a_second() -> bool:
        bench.wake()
        return monotonic() - begin > 1

    wait_for(woken_for_a_second)
    assert bench.a.journal.counters["errors"] <= 3
    bench.stop(0)


def test_a_stop_publishes_what_is_due_and_closes_everything(bench: Bench) -> None:
    bench = Bench(**STEADY).started()
    bench.wait_until_at_rest()
    bench.add("a", 2)
    bench.stop()
    assert bench.published("a") == 2
    assert bench.publishers["a"].closed
    assert bench.deliveries.closed


def test_a_stop_gives_back_what_it_has_no_time_for() -> None:
    slow = SlowPublisher()
    bench = Bench(slow)
    bench.add("a", 5)
    bench.group.work(at_work=True)
    assert slow.sending.wait(10)
    bench.group.ask_to_stop(0, 2)
    slow.go.release(5)
    bench.group.join()
    assert bench.published("a") == 1
    assert [row.claimed_by for row in bench.store.rows.values()] == [None] * 4


def test_a_stop_does_not_wait_for_one_that_hangs() -> None:
    slow = SlowPublisher()
    bench = Bench(slow)
    bench.add("a")
    bench.group.work(at_work=True)
    assert slow.sending.wait(10)
    begin = monotonic()
    bench.stop(0, 0.5)
    assert monotonic() - begin < 5
    slow.go.release()


def test_one_that_gets_its_slot_while_it_stops_publishes_once_more() -> None:
    bench = Bench()
    bench.add("a")
    bench.group.ask_to_stop(5, 5)
    bench.group.work(at_work=True)
    bench.group.join()
    assert bench.published("a") == 1


class TestStandingBy:
    def test_gives_everything_back_and_closes_the_connection(self, bench: Bench) -> None:
        bench.started()
        bench.group.work(at_work=False)
        wait_for(lambda: bench.deliveries.closed)
        assert {relay.state for relay in bench.group.relays} == {"standing by"}
        bench.add("a")
        bench.wake()
        bench.stop()
        assert bench.published("a") == 0

    def test_does_not_close_before_the_batch_in_hand_is_settled(self) -> None:
        slow = SlowPublisher()
        bench = Bench(slow)
        bench.add("a")
        bench.group.work(at_work=True)
        assert slow.sending.wait(10)
        bench.group.work(at_work=False)
        wait_for(lambda: bench.b.is_idle)
        assert not bench.deliveries.closed
        slow.go.release()
        wait_for(lambda: bench.deliveries.closed)
        assert bench.store.rows == {}
        bench.stop(0)

    def test_works_again_when_the_slot_is_back(self, bench: Bench) -> None:
        bench.started()
        for _ in range(20):
            bench.group.work(at_work=False)
            bench.group.work(at_work=True)
        wait_for(lambda: bench.a.state == bench.b.state == "relaying")
        bench.add("a")
        bench.wait_until_published("a", 1)
        bench.group.work(at_work=False)
        wait_for(lambda: bench.a.is_idle and bench.b.is_idle)


class TestPause:
    def test_stops_one_alone(self, bench: Bench) -> None:
        bench.store.pause("maintenance", "me", "a")
        bench.group.work(at_work=True)
        wait_for(lambda: bench.a.state == "paused")
        bench.add("a")
        bench.add("b")
        bench.wait_until_published("b", 1)
        assert bench.published("a") == 0
        assert bench.a.info()["pause_reason"] == "maintenance"
        bench.store.resume("a")
        bench.group.look_at_pauses()
        bench.wait_until_published("a", 1)

    @pytest.mark.parametrize("_", range(5))
    def test_holds_from_the_first_claim_on(self, bench: Bench, _: int) -> None:
        bench.add("a")
        bench.store.pause("maintenance", "me", "a")
        bench.group.work(at_work=True)
        wait_for(lambda: bench.a.state == "paused")
        bench.stop(0)
        assert bench.published("a") == 0

    def test_of_the_worker_or_the_outbox_is_one_of_all(self, bench: Bench) -> None:
        bench.started()
        bench.group.pause(Pause("by hand", "", 0.0))
        wait_for(lambda: bench.a.state == bench.b.state == "paused")
        bench.group.pause(None)
        wait_for(lambda: bench.a.state == bench.b.state == "relaying")
        bench.store.pause("everything", "me")
        bench.group.look_at_pauses()
        wait_for(lambda: bench.a.state == bench.b.state == "paused")


class TestErrors:
    def test_of_the_thread_that_wakes_them_are_reported_and_pass(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "celery_outbox")
        bench.deliveries.error = RuntimeError("a bug")
        bench.group.work(at_work=True)
        wait_for(lambda: caplog.text.count("a bug; trying again in") >= 2)
        assert [each.levelname for each in caplog.records].count("ERROR") == 1
        bench.deliveries.error = None
        bench.add("a")
        bench.wait_until_published("a", 1)
        wait_for(lambda: "celery_outbox_relay_recovered" in caplog.text)

    def test_of_one_concern_no_other(self, bench: Bench) -> None:
        bench.started()
        bench.deliveries.lanes["a"].error = StoreError("away")
        wait_for(lambda: bench.a.state == "backing off after an error")
        bench.add("b")
        bench.wait_until_published("b", 1)
        bench.deliveries.lanes["a"].error = None
        bench.add("a")
        bench.wait_until_published("a", 1)

    def test_a_thread_that_could_not_be_started_is_started_later(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refusals = iter([RuntimeError("can't start new thread")])
        start = threading.Thread.start

        def maybe_start(thread: threading.Thread) -> None:
            if thread.name.startswith("outbox-relay-memory"):
                for error in refusals:
                    raise error
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", maybe_start)
        bench.add("a")
        bench.group.work(at_work=True)
        bench.wait_until_published("a", 1)


def service_of(bench: Bench) -> RelayService:
    return RelayService(
        Celery("unit", set_as_current=False), bench.store, bench.config,
        publisher_factory=lambda app, declare: RecordingPublisher(), destinations=bench.group,
    )  # fmt: skip


class TestInAWorker:
    @pytest.fixture
    def service(self, bench: Bench) -> Iterator[RelayService]:
        service = service_of(bench)
        yield service
        service.ask_to_stop(2)
        service.join()

    def ask(self, path: str, service: RelayService) -> tuple[int, str]:
        found = Endpoints(RelayGroup([service]), None).answer(path)
        return int(found.status), found.body.decode()

    def test_they_work_while_the_own_broker_is_away(
        self, bench: Bench, service: RelayService
    ) -> None:
        service.start()
        bench.add("a")
        bench.wait_until_published("a", 1)
        assert service.state == "waiting for the broker"
        assert [each["state"] for each in service.info()["destinations"]] == ["relaying"] * 2

    def test_a_pause_of_the_worker_is_theirs_too(self, bench: Bench, service: RelayService) -> None:
        service.start()
        service.broker_up()
        wait_for(lambda: bench.a.state == "relaying")
        service.pause("deploy")
        wait_for(lambda: "relaying" not in (bench.a.state, bench.b.state))
        service.resume()
        wait_for(lambda: bench.a.state == bench.b.state == "relaying")

    def test_the_fleet_is_told_what_they_do(self, bench: Bench, service: RelayService) -> None:
        service.start()
        service.broker_up()
        wait_for(bench.group.states)
        service.check_in_now()
        wait_for(
            lambda: [
                set(each.member.destinations) for each in bench.store.fleet().members
            ] == [{"a", "b"}]
        )  # fmt: skip

    def test_a_broker_of_a_destination_that_is_away_leaves_the_worker_alive_and_ready(
        self, bench: Bench, service: RelayService
    ) -> None:
        bench.publishers["a"].down = DOWN
        bench.add("a")
        service.start()
        service.broker_up()
        wait_for(lambda: bench.a.state == "cooling down after an outage")
        wait_for(lambda: self.ask("/readyz", service) == (200, "memory: relaying\n"))
        assert self.ask("/livez", service)[0] == 200

    def test_one_that_hangs_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        slow = SlowPublisher()
        bench = Bench(slow, send_timeout=0.01)
        service = service_of(bench)
        service.start()
        service.broker_up()
        wait_for(lambda: bench.b.state == "relaying")
        assert self.ask("/livez", service) == (200, "alive\n")
        monkeypatch.setattr(threads, "LONGEST_STILL", 1.5)
        bench.add("a")
        assert slow.sending.wait(10)
        wait_for(lambda: self.ask("/livez", service)[0] == 503)
        assert "the relay for a's loop has not moved for" in self.ask("/livez", service)[1]
        assert bench.a.info()["seconds_still"] > 1
        slow.go.release()
        wait_for(lambda: self.ask("/livez", service)[0] == 200)
        service.ask_to_stop(2)
        service.join()

    def test_one_that_hangs_does_not_keep_the_slot_of_a_worker_that_stops(self) -> None:
        slow = SlowPublisher()
        bench = Bench(slow)
        service = service_of(bench)
        bench.add("a")
        service.start()
        assert slow.sending.wait(10)
        service.ask_to_stop(1.5)
        service.join()
        (member,) = bench.store.fleet().members
        assert member.member.state == "stopped"
        slow.go.release()


def test_a_broker_that_was_closed_connects_again_at_once() -> None:
    (destination,) = destinations({"a": {"url": "memory://"}}).values()
    broker, begin = Broker(destination), monotonic()
    for _ in range(2):
        with pooled_producer(broker, Deadline(3)) as producer:
            assert producer.connection.connected
        broker.close()
    assert monotonic() - begin < 2


def test_an_idle_one_claims_once_per_idle_time(bench: Bench) -> None:
    bench = Bench(idle_time=0.5).started()
    lane = bench.deliveries.lanes["a"]
    wait_for(lambda: lane.claims >= 7)  # it has slowed down
    before, begin = lane.claims, monotonic()
    wait_for(lambda: monotonic() - begin > 1.6)
    assert lane.claims - before <= 4
    bench.stop(0)


def test_pauses_are_looked_at_every_few_seconds_and_logged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "REFRESH", 0.05)
    monkeypatch.setattr(module, "LIVENESS_INTERVAL", 0.05)
    bench.started()
    bench.store.pause("maintenance", "me", "a")
    wait_for(lambda: bench.a.state == "paused")
    bench.store.resume("a")
    wait_for(lambda: bench.a.state == "relaying")
    wait_for(lambda: "celery_outbox_destination_resumed" in caplog.text)
    assert [each.getMessage() for each in caplog.records if "paused" in each.getMessage()] == [
        "celery_outbox_destination_paused: a: by me; its rows wait until it is resumed: maintenance"
    ]
    bench.store.pause("maintenance", "me")
    wait_for(lambda: bench.a.state == "paused")
    assert caplog.text.count("celery_outbox_destination_paused") == 1
