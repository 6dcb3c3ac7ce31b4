"""One tick: claim → publish → settle, on twins of the database and the broker."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu.utils.json import dumps

from celery_outbox_steps.errors import ConfirmTimeout, Interrupted, Nacked, StoreError
from celery_outbox_steps.messages import BatchResult, Receipt
from celery_outbox_steps.publishers import publisher_for
from celery_outbox_steps.relay.prefetch import PrefetchThread
from celery_outbox_steps.relay.tick import Relay
from celery_outbox_steps.settings import RelayConfig
from celery_outbox_steps.testing import MemoryStore, RecordingPublisher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DOWN = ConnectionRefusedError("nobody listens")
EXPIRING = {
    "headers": {"task": "tests.task", "expires": "2026-01-01T00:01:00+00:00"},
    "properties": {"expiration": "60000"},
    "priority": 0,
    "exchange": "",
    "routing_key": "q",
    "expires": "2026-01-01T00:01:00+00:00",
}


class Clock:
    """The database's clock, or the one of the relay's machine."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def buffer_for(seconds: float, clock: Clock, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, but slow."""

    def slow(*args: Any, **kwargs: Any) -> Any:
        clock.now += seconds
        return function(*args, **kwargs)

    return slow


class BrittleStore(MemoryStore):
    """A database that goes away at the moment that a test names."""

    broken: frozenset[str] = frozenset()

    def claim(self, *args: Any, **kwargs: Any) -> Any:
        self._maybe_fail("claim")
        return super().claim(*args, **kwargs)

    def settle(self, *args: Any) -> int:
        self._maybe_fail("settle")
        return super().settle(*args)

    def release(self, *args: Any) -> int:
        self._maybe_fail("release")
        return super().release(*args)

    def renew(self, *args: Any) -> list[int]:
        self._maybe_fail("renew")
        return super().renew(*args)

    def _maybe_fail(self, what: str) -> None:
        if what in self.broken:
            raise StoreError(f"no {what}: the database is away")


def options(task: str, routing_key: str = "q") -> str:
    return dumps(
        {
            "headers": {"task": task}, "properties": {}, "priority": 0, "exchange": "",
            "routing_key": routing_key,
        }
    )  # fmt: skip


class Bench:
    """A relay with everything around it in reach."""

    def __init__(self, publisher: RecordingPublisher | None = None, **config: Any) -> None:
        self.clock = Clock()
        self.here = Clock()
        self.store = BrittleStore(clock=self.clock)
        self.publisher = publisher or RecordingPublisher()
        self.config = RelayConfig(**config)
        self.stopping = False
        self.relay = self.another("first")

    def another(
        self,
        relay_id: str,
        publisher: RecordingPublisher | None = None,
        *,
        prefetch: PrefetchThread | None = None,
    ) -> Relay:
        app = Celery("unit", set_as_current=False)
        return Relay(
            app, self.store, publisher or self.publisher, self.config, relay_id,
            should_stop_sending=lambda: self.stopping, prefetch=prefetch, clock=self.here,
        )  # fmt: skip

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.here.now += seconds

    def break_(self, *what: str) -> None:
        self.store.broken = frozenset(what)

    def add(self, count: int = 1, task: str = "tests.task", **columns: Any) -> None:
        for _ in range(count):
            self.store.add(task, **{"options": options(task), **columns})

    def tick(self) -> BatchResult:
        return self.relay.run_once()

    @property
    def leased(self) -> int:
        return sum(row.claimed_by is not None for row in self.store.rows.values())


def test_rows_are_published_in_order_and_gone() -> None:
    bench = Bench()
    for number in range(3):
        bench.add(task=f"task{number}")
    result = bench.tick()
    assert (result.claimed, result.published, result.full) == (3, 3, False)
    assert [each.headers["task"] for each in bench.publisher.published] == [
        "task0", "task1", "task2",
    ]  # fmt: skip
    assert bench.store.rows == {}


def test_nothing_due_is_nothing_done() -> None:
    bench = Bench()
    bench.add(due_in=60)
    assert bench.tick() == BatchResult()
    assert bench.publisher.batches == 0


def test_a_full_batch_says_so() -> None:
    bench = Bench(batch_size=2)
    bench.add(3)
    assert [bench.tick().full, bench.tick().full] == [True, False]


class TestFailures:
    def test_a_failure_costs_a_retry_and_a_backoff(self) -> None:
        bench = Bench(backoff_time=100)
        bench.add(task="bad")
        bench.add(task="good")
        bench.publisher.fail_task("bad", Nacked("no"))
        result = bench.tick()
        assert (result.published, result.retried) == (1, 1)
        (row,) = bench.store.rows.values()
        assert row.retries == 1
        assert row.due_at is not None
        assert 100 <= row.due_at - bench.clock.now <= 110
        assert row.last_error == "Nacked: no"

    def test_the_last_retry_ends_in_the_dead_letters_with_the_real_error(self) -> None:
        bench = Bench(max_retries=3)
        bench.add(task="bad", retries=2)
        bench.publisher.fail_task("bad", Nacked("no"))
        assert bench.tick().dead == 1
        (letter,) = bench.store.dead_letters.values()
        assert letter.failure_reason == "Nacked: no"

    def test_a_permanent_error_is_dead_at_once(self) -> None:
        bench = Bench()
        bench.add(task="bad")
        bench.publisher.fail_task("bad", TypeError("not sendable"))
        assert bench.tick().dead == 1

    @pytest.mark.parametrize("options", ["{", "[]", "null", '{"headers": 1}', "[" * 100_000])
    def test_a_row_that_holds_no_message_is_dead_and_its_neighbours_are_not(
        self, options: str
    ) -> None:
        bench = Bench()
        bench.add(2)
        bench.add(options=options)
        bench.add(2)
        result = bench.tick()
        assert (result.published, result.dead) == (4, 1)

    def test_a_message_that_trips_the_publisher_fails_alone(self) -> None:
        class Tripping(RecordingPublisher):
            def publish(self, messages: Any, timeout: float) -> Any:
                for position, message in enumerate(messages):
                    if message.headers["task"] == "bad":
                        raise LookupError("a bug")
                    self.published.append(message)
                    yield Receipt(position)

        bench = Bench(Tripping())
        bench.add(2)
        bench.add(task="bad")
        bench.add(2)
        result = bench.tick()
        assert (result.published, result.retried, result.dead) == (4, 1, 0)
        (row,) = bench.store.rows.values()
        assert row.last_error == "LookupError: a bug"


def pipelined() -> RecordingPublisher:
    publisher = RecordingPublisher()
    publisher.lazy = False
    return publisher


class TestOneMessageBreaksTheConnection:
    BROKEN = ConnectionResetError("connection reset by peer")

    def bench(self, **config: Any) -> Bench:
        bench = Bench(pipelined(), **{"backoff_time": 1, **config})
        bench.publisher.break_on_task("poison", self.BROKEN)
        return bench

    def test_it_spends_a_retry_and_its_neighbours_arrive(self) -> None:
        bench = self.bench()
        bench.add(3)
        bench.add(task="poison")
        bench.add(3)
        result = bench.tick()
        assert (result.published, result.retried, result.deferred) == (6, 1, 0)
        (row,) = bench.store.rows.values()
        assert (row.retries, row.last_error) == (
            1, "ConnectionResetError: connection reset by peer"
        )  # fmt: skip
        assert not bench.relay.breaker.is_open

    def test_its_neighbours_arrive_at_most_twice_until_it_is_dead(self) -> None:
        bench = self.bench(max_retries=4)
        for number in range(30):
            bench.add(task="poison" if number % 10 == 5 else f"good{number}")
        for _ in range(4):
            bench.tick()
            bench.clock.now += 20
        assert bench.store.rows == {}
        assert [each.failure_reason for each in bench.store.dead_letters.values()] == [
            "ConnectionResetError: connection reset by peer"
        ] * 3
        copies = Counter(each.headers["task"] for each in bench.publisher.published)
        assert len(copies) == 27
        assert max(copies.values()) <= 2

    def test_later_it_costs_others_nothing(self) -> None:
        bench = self.bench()
        bench.add(task="poison")
        bench.tick()
        bench.clock.now += 2
        bench.add(10)
        result = bench.tick()
        assert (result.published, result.retried) == (10, 1)
        assert len(bench.publisher.published) == 10

    def test_a_broker_that_is_away_is_no_reason_to_blame_it(self) -> None:
        class DiesForGood(RecordingPublisher):
            def publish(self, messages: Any, timeout: float) -> Any:
                if self.down is None:
                    self.down = DOWN
                    raise Interrupted("gone")
                return super().publish(messages, timeout)

        bench = Bench(DiesForGood())
        bench.add(3)
        result = bench.tick()
        assert (result.deferred, result.retried) == (3, 0)
        assert {row.retries for row in bench.store.rows.values()} == {0}

    def test_a_transport_that_can_not_tell_needs_a_message_that_got_through(self) -> None:
        bench = self.bench()
        bench.publisher.can_tell = False
        bench.add(task="poison")
        assert (bench.tick().deferred, bench.store.rows[1].retries) == (1, 0)
        bench.clock.now += 2
        bench.add()
        result = bench.tick()
        assert (result.published, result.retried) == (1, 1)

    def test_a_transport_that_takes_nothing_and_can_not_tell_is_an_outage(self) -> None:
        bench = self.bench()
        bench.publisher.can_tell = False
        bench.add(20, task="poison")
        result = bench.tick()
        assert (result.deferred, result.retried) == (20, 0)
        assert bench.publisher.batches == 1 + 3, "a dead broker was asked once per message"

    def test_an_outage_in_mid_batch_blames_one_row_at_most_where_the_transport_can_not_tell(
        self,
    ) -> None:
        class FailsAfter(RecordingPublisher):
            can_tell = False

            def publish(self, messages: Any, timeout: float) -> Any:
                for position, message in enumerate(messages):
                    if len(self.published) >= 3:
                        raise Interrupted("gone") from OSError("gone")
                    self.published.append(message)
                    yield Receipt(position)

        bench = Bench(FailsAfter())
        bench.publisher.can_tell = False
        bench.add(10)
        result = bench.tick()
        assert (result.published, result.retried, result.deferred) == (3, 1, 6)

    def test_what_is_interrupted_after_its_receipt_was_published_once(self) -> None:
        """As by an event that follows the message."""

        class Late(RecordingPublisher):
            def publish(self, messages: Any, timeout: float) -> Any:
                yield from super().publish(messages, timeout)
                raise Interrupted("late") from TimeoutError("late")

        bench = Bench(Late())
        bench.add(retries=1, updated_at=1.0)
        result = bench.tick()
        assert (result.published, result.retried) == (1, 0)
        assert len(bench.publisher.published) == 1

    def test_what_was_interrupted_is_not_given_back_as_new_when_the_worker_stops(self) -> None:
        class Stops(RecordingPublisher):
            lazy = False

            def publish(self, messages: Any, timeout: float) -> Any:
                try:
                    yield from super().publish(messages, timeout)
                finally:
                    bench.stopping = True

        bench = Bench(Stops())
        bench.publisher.break_on_task("poison", self.BROKEN)
        bench.add(3)
        bench.add(task="poison")
        result = bench.tick()
        assert (result.released, result.deferred) == (0, 4)
        assert all(row.attempted for row in bench.store.claim(10, 60, "next"))

    def test_a_transport_option_of_the_wrong_type_is_an_outage(self) -> None:
        app = Celery("unit", broker="redis://127.0.0.1:1", set_as_current=False)
        app.conf.broker_transport_options = {"socket_timeout": "30"}
        bench = Bench(publisher_for(app))  # type: ignore[arg-type]
        bench.add(2)
        result = bench.tick()
        assert (result.deferred, result.dead) == (2, 0)

    def test_a_broken_pool_is_an_outage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        app = Celery("unit", broker="memory://", set_as_current=False)
        publisher = publisher_for(app)
        # The same in every kombu; put back, because apps of one broker share their pools.
        monkeypatch.setattr(app.producer_pool.connections, "_closed", True)
        bench = Bench(publisher, max_retries=1)  # type: ignore[arg-type]
        bench.add(3)
        result = bench.tick()
        assert (result.deferred, result.dead) == (3, 0)

    def test_what_there_is_no_time_to_send_alone_waits_unharmed(self) -> None:
        class Slow(RecordingPublisher):
            lazy = False

            def publish(self, messages: Any, timeout: float) -> Any:
                bench.here.now += 4
                yield from super().publish(messages, timeout)

        bench = Bench(Slow(), send_timeout=10)
        bench.publisher.break_on_task("poison", self.BROKEN)
        bench.add(task="poison")
        bench.add(9)
        result = bench.tick()
        assert (result.retried, result.published, result.deferred) == (1, 1, 8)
        assert not result.outage, "the broker is alive"
        assert sum(row.retries for row in bench.store.rows.values()) == 1


class TestAQueueThatDoesNotConfirm:
    STUCK = ConfirmTimeout("the broker did not confirm in time")

    def bench(self) -> Bench:
        bench = Bench(pipelined(), backoff_time=1)
        bench.publisher.break_on_task("stuck", self.STUCK)
        return bench

    def add(self, bench: Bench, count: int = 1) -> None:
        bench.add(count, options=options("stuck", routing_key="stuck"))

    def test_one_of_its_messages_is_waited_for_and_spends_a_retry(self) -> None:
        bench = self.bench()
        self.add(bench, 5)
        bench.add(5)
        result = bench.tick()
        assert (result.published, result.retried, result.deferred) == (5, 1, 4)
        assert not result.outage
        assert bench.publisher.batches == 1 + 1 + 5, "together, one of the stuck ones, the others"

    def test_nothing_is_sent_to_it_for_a_while(self) -> None:
        bench = self.bench()
        self.add(bench)
        bench.tick()
        before = bench.publisher.batches
        self.add(bench, 3)
        bench.add(2)
        result = bench.tick()
        assert (result.published, result.deferred) == (2, 3)
        assert bench.publisher.batches == before + 1

    def test_a_row_that_tries_it_again_beside_a_poison_is_sent_once(self) -> None:
        bench = self.bench()
        self.add(bench)
        bench.tick()
        bench.publisher.heal()
        bench.publisher.break_on_task("poison", ConnectionResetError())
        bench.here.now += 31
        self.add(bench)
        bench.add(task="poison")
        result = bench.tick()
        assert (result.published, result.retried) == (1, 1)
        assert len(bench.publisher.published) == 1

    def test_then_one_message_tries_alone(self) -> None:
        bench = self.bench()
        self.add(bench)
        bench.tick()
        bench.publisher.heal()
        bench.here.now += 31
        self.add(bench, 3)
        result = bench.tick()
        assert result.published == 3
        assert [each.routing_key for each in bench.publisher.published] == ["stuck"] * 3


class TestRowsThatKillTheirRelay:
    def orphan(self, bench: Bench, count: int = 1) -> None:
        """A relay claims the rows, and dies."""
        bench.store.claim(count, 1, "dead relay")
        bench.clock.now += 2

    def test_an_orphan_is_sent_alone_and_counted_first(self) -> None:
        seen: list[int] = []

        class Looking(RecordingPublisher):
            def publish(self, messages: Any, timeout: float) -> Any:
                seen.append(max((row.retries for row in bench.store.rows.values()), default=0))
                return super().publish(messages, timeout)

        bench = Bench(Looking())
        bench.add(2)
        self.orphan(bench, 2)
        assert bench.tick().published == 2
        assert seen[-2:] == [1, 1], "the attempt was not counted before it was made"

    def test_one_that_kills_again_and_again_is_dead_and_its_neighbours_are_not(self) -> None:
        class Kills(RecordingPublisher):
            def publish(self, messages: Any, timeout: float) -> Any:
                for position, message in enumerate(messages):
                    if message.headers["task"] == "killer":
                        raise SystemExit
                    self.published.append(message)
                    yield Receipt(position)

        bench = Bench(Kills(), max_retries=3, stale_timeout=20)
        bench.add(2)
        bench.add(task="killer")
        bench.add(2)
        for number in range(8):
            relay = bench.another(f"relay{number}")
            with suppress(SystemExit):
                relay.run_once()
            bench.clock.now += 21
        assert bench.store.rows == {}
        (letter,) = bench.store.dead_letters.values()
        assert letter.row.task_name == "killer"
        assert "ended without a result; 3 attempts" in letter.failure_reason
        assert letter.row.retries == 3

    def test_an_orphan_that_was_not_sent_is_still_one(self) -> None:
        bench = Bench(StopsAfter(1))
        bench.publisher.bench = bench
        bench.add(3)
        self.orphan(bench, 3)
        assert bench.tick().published == 1
        assert [row.orphaned for row in bench.store.claim(10, 60, "next")] == [True, True]

    @pytest.mark.parametrize("error", [MemoryError(), StoreError("packet too large")])
    def test_a_row_that_can_not_be_loaded_is_dead_and_stops_no_other(
        self, error: Exception
    ) -> None:
        bench = Bench(max_retries=3, backoff_time=1)
        bench.add(args=f'["{"x" * 17_000_000}"]', task="large")
        bench.add(2)
        begin = bench.store.begin_attempt

        def failing(*args: Any) -> Any:
            begin(*args)
            raise error

        bench.store.begin_attempt = failing  # type: ignore[method-assign]
        for _ in range(8):
            with suppress(StoreError):
                bench.tick()
            bench.clock.now += 10
        assert bench.store.rows == {}
        assert [letter.row.task_name for letter in bench.store.dead_letters.values()] == ["large"]
        assert len(bench.publisher.published) == 2

    def test_a_row_too_large_for_a_batch_comes_alone_and_whole(self) -> None:
        bench = Bench()
        bench.add(2)
        bench.add(args=f'["{"x" * 17_000_000}"]', task="large")
        bench.add(2)
        published = [bench.tick().published for _ in range(3)]
        assert sum(published) == 5
        (large,) = [each for each in bench.publisher.published if len(each.body) > 1_000_000]
        assert len(large.body) > 17_000_000


class TestLostAnswers:
    def test_rows_of_a_claim_whose_answer_was_lost_are_taken_up_again(self) -> None:
        bench = Bench()
        bench.add(3)
        claim = bench.store.claim

        def lost(*args: Any, **kwargs: Any) -> Any:
            claim(*args, **kwargs)
            raise StoreError("the connection was cut")

        bench.store.claim = lost  # type: ignore[method-assign]
        with pytest.raises(StoreError):
            bench.tick()
        assert bench.leased == 3
        bench.store.claim = claim  # type: ignore[method-assign]
        assert bench.tick().published == 3

    def test_claims_get_smaller_when_memory_runs_out(self) -> None:
        limits: list[int] = []
        bench = Bench(batch_size=8)
        bench.add(8)
        claim = bench.store.claim

        def greedy(limit: int, *args: Any, **kwargs: Any) -> Any:
            limits.append(limit)
            if limit > 2:
                raise MemoryError
            return claim(limit, *args, **kwargs)

        bench.store.claim = greedy  # type: ignore[method-assign]
        for _ in range(2):
            with pytest.raises(MemoryError):
                bench.tick()
        assert bench.tick().published == 2
        assert limits == [8, 4, 2]


class TestOutages:
    def test_no_retry_is_spent(self) -> None:
        bench = Bench()
        bench.add(3)
        bench.publisher.down = DOWN
        result = bench.tick()
        assert (result.deferred, result.outage) == (3, "ConnectionRefusedError: nobody listens")
        assert {row.retries for row in bench.store.rows.values()} == {0}
        assert bench.leased == 0

    def test_two_in_a_row_stop_the_claims_and_one_row_probes(self) -> None:
        bench = Bench(broker_outage_cooldown=30)
        bench.add(5)
        bench.publisher.down = DOWN
        for _ in range(2):
            bench.tick()
            bench.clock.now += 2
        assert bench.relay.breaker.is_open
        assert bench.tick() == BatchResult()
        bench.publisher.heal()
        bench.relay.breaker.probe_now()
        assert bench.tick().published == 1
        assert bench.tick().published == 4


class TestDatabaseAway:
    def test_what_was_published_is_settled_before_anything_else(self) -> None:
        bench = Bench()
        bench.add(3)
        bench.store.broken = frozenset({"settle"})
        with pytest.raises(StoreError):
            bench.tick()
        assert bench.relay.in_hand
        bench.add(2)
        with pytest.raises(StoreError):
            bench.tick()
        assert bench.publisher.batches == 1, "the batch was published again"
        bench.store.broken = frozenset()
        assert bench.tick().published == 3, "the result is reported once the batch is settled"
        assert bench.tick().published == 2
        assert len(bench.publisher.published) == 5
        assert bench.store.rows == {}

    def test_the_lease_may_be_lost_meanwhile_and_the_fence_holds(self) -> None:
        bench = Bench(stale_timeout=20)
        bench.add(3)
        bench.store.broken = frozenset({"settle"})
        with pytest.raises(StoreError):
            bench.tick()
        bench.store.broken = frozenset()
        bench.clock.now += 21
        taken = bench.store.claim(2, 60, "second")
        result = bench.tick()
        assert (result.published, result.fenced) == (3, 2)
        assert sorted(bench.store.rows) == sorted(row.id for row in taken)
        assert {row.claimed_by for row in bench.store.rows.values()} == {"second"}

    def test_a_release_that_fails_is_repeated_alone(self) -> None:
        bench = Bench(StopsAfter(1))
        bench.publisher.bench = bench
        bench.add(3)
        bench.store.broken = frozenset({"release"})
        with pytest.raises(StoreError):
            bench.tick()
        assert bench.leased == 2
        bench.store.broken = frozenset()
        result = bench.relay.settle_in_hand()
        assert (result.published, result.released, result.fenced) == (1, 2, 0)
        assert bench.leased == 0

    def test_an_error_before_the_publishing_gives_the_rows_back(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench = Bench()
        bench.add(3)
        monkeypatch.setattr(bench.relay._publish_step._app, "now", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bench.tick()
        assert bench.tick().released == 3
        assert bench.leased == 0


class StopsAfter(RecordingPublisher):
    """The worker is told to stop while the n-th message is sent."""

    bench: Bench

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def publish(self, messages: Any, timeout: float) -> Any:
        for receipt in super().publish(messages, timeout):
            self.bench.stopping = len(self.published) >= self._count
            yield receipt


class TestStopSending:
    def test_the_unsent_rest_is_given_back_at_once(self) -> None:
        bench = Bench(StopsAfter(2))
        bench.publisher.bench = bench
        bench.add(5)
        result = bench.tick()
        assert (result.published, result.released) == (2, 3)
        assert len(bench.publisher.published) == 2
        assert bench.leased == 0
        assert {row.retries for row in bench.store.rows.values()} == {0}

    def test_a_pipeline_is_never_given_back_half(self) -> None:
        bench = Bench(StopsAfter(1))
        bench.publisher.bench = bench
        bench.publisher.lazy = False
        bench.add(5)
        result = bench.tick()
        assert (result.published, result.released) == (5, 0)

    def test_rows_that_were_claimed_too_late_are_not_sent(self) -> None:
        bench = Bench()
        bench.add(3)
        bench.stopping = True
        assert bench.tick().released == 3
        assert bench.publisher.batches == 0
        assert bench.leased == 0


class Meanwhile(RecordingPublisher):
    """Calls a function while each batch is sent, when the claim ahead is over."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        super().__init__()
        self.prefetch = PrefetchThread()
        self._steps = iter(steps)

    def publish(self, messages: Any, timeout: float) -> Any:
        self.prefetch.wait()
        next(self._steps, lambda: None)()
        yield from super().publish(messages, timeout)

    def meanwhile(self, *steps: Callable[[], None]) -> None:
        self._steps = iter(steps)


class TestClaimAhead:
    @pytest.fixture(autouse=True)
    def _close(self) -> Iterator[None]:
        self.benches: list[Bench] = []
        yield
        for bench in self.benches:
            bench.relay.close()

    def bench(self, publisher: Meanwhile | None = None, **config: Any) -> Bench:
        publisher = publisher or Meanwhile()
        bench = Bench(publisher, **{"batch_size": 2, **config})
        bench.relay = bench.another("ahead", prefetch=publisher.prefetch)
        self.benches.append(bench)
        return bench

    def test_the_next_batch_is_claimed_while_this_one_is_sent(self) -> None:
        seen: list[int] = []
        bench = self.bench(Meanwhile(lambda: seen.append(bench.leased)))
        bench.add(5)
        assert bench.tick().published == 2
        assert (seen, bench.leased) == ([4], 2)

    def test_every_row_is_sent_once_and_in_order(self) -> None:
        bench = self.bench()
        for number in range(5):
            bench.add(task=f"task{number}")
        results = [bench.tick() for _ in range(3)]
        assert [(each.claimed, each.published, each.full) for each in results] == [
            (2, 2, True), (2, 2, True), (1, 1, False),
        ]  # fmt: skip
        assert [each.headers["task"] for each in bench.publisher.published] == [
            f"task{number}" for number in range(5)
        ]
        assert (bench.store.rows, bench.relay.in_hand) == ({}, False)

    def test_nothing_is_claimed_ahead_of_a_batch_that_is_not_full(self) -> None:
        seen: list[int] = []
        bench = self.bench(Meanwhile(lambda: bench.add(1), lambda: seen.append(bench.leased)))
        bench.add(1)
        assert [bench.tick().published, bench.tick().published] == [1, 1]
        assert seen == [1]

    def test_it_is_given_back_when_the_settle_fails(self) -> None:
        """A database that crashed may have forgotten that claim, and another relay has its rows."""
        bench = self.bench(Meanwhile(lambda: bench.break_("settle")))
        bench.add(4)
        with pytest.raises(StoreError):
            bench.tick()
        bench.break_()
        result = bench.tick()
        assert (result.published, result.released) == (2, 2)
        assert bench.tick().published == 2
        assert len(bench.publisher.published) == 4

    def test_it_is_given_back_if_it_repeats_the_batch_in_hand(self) -> None:
        """The process was frozen beyond its lease, so that its own rows seemed free."""
        bench = self.bench(stale_timeout=20)
        bench.add(2)
        claim = bench.store.claim

        def frozen(*args: Any, **kwargs: Any) -> Any:
            if bench.leased:
                bench.clock.now += 21
            return claim(*args, **kwargs)

        bench.store.claim = frozen  # type: ignore[method-assign]
        assert bench.tick().published == 2
        bench.tick()
        assert len(bench.publisher.published) == 2
        assert bench.store.rows == {}

    def test_nothing_is_claimed_ahead_beside_rows_that_may_kill_the_relay(self) -> None:
        """The publish step settles and begins then, and the Store is used by one thread."""
        seen: list[int] = []
        bench = self.bench(Meanwhile(lambda: seen.append(bench.leased)), stale_timeout=20)
        bench.add(2)
        bench.store.claim(2, 1, "dead relay")
        bench.clock.now += 2
        bench.add(2)
        assert bench.tick().published == 2
        assert seen == [2]

    def test_an_outage_gives_it_back_at_once(self) -> None:
        bench = self.bench()
        bench.add(5)
        bench.publisher.down = DOWN
        result = bench.tick()
        assert (result.deferred, result.released) == (2, 2)
        assert (bench.leased, bench.relay.in_hand) == (0, False)

    def test_a_worker_that_must_stop_gives_it_back(self) -> None:
        bench = self.bench()
        bench.add(5)
        bench.tick()
        assert bench.relay.in_hand
        assert bench.relay.settle_in_hand().released == 2
        assert (bench.leased, bench.relay.in_hand) == (0, False)
        assert {row.retries for row in bench.store.rows.values()} == {0}

    def test_it_is_given_back_when_the_database_is_there_again(self) -> None:
        bench = self.bench(Meanwhile(lambda: bench.break_("settle", "release")))
        bench.add(5)
        with pytest.raises(StoreError):
            bench.tick()
        with pytest.raises(StoreError):
            bench.relay.settle_in_hand()
        bench.break_()
        result = bench.relay.settle_in_hand()
        assert (result.published, result.released, bench.leased) == (2, 2, 0)
        assert not bench.relay.in_hand

    def test_a_database_that_goes_away_meanwhile_costs_only_the_head_start(self) -> None:
        bench = self.bench()
        bench.add(5)
        claim, failing = bench.store.claim, iter([False, True, False])

        def sometimes(*args: Any, **kwargs: Any) -> Any:
            if next(failing, False):
                raise StoreError("the database is away")
            return claim(*args, **kwargs)

        bench.store.claim = sometimes  # type: ignore[method-assign]
        assert [bench.tick().published for _ in range(3)] == [2, 2, 1]

    def test_its_lease_is_renewed_if_it_could_end_meanwhile(self) -> None:
        bench = self.bench()
        bench.add(4)
        bench.tick()
        bench.pass_time(bench.config.lease - 1)  # the batch before it was slow
        bench.publisher.meanwhile(lambda: bench.pass_time(2))  # type: ignore[attr-defined]
        result = bench.tick()
        assert (result.published, result.fenced) == (2, 0)

    def test_a_message_is_dated_when_it_is_sent(self) -> None:
        """Its time to live goes on while it is held."""
        bench = self.bench(batch_size=1)
        bench.add()
        bench.add(options=dumps(EXPIRING))
        bench.tick()
        bench.here.now += 5
        bench.tick()
        assert bench.publisher.published[1].properties["expiration"] == "55000"


def test_close_lets_go_of_the_broker() -> None:
    bench = Bench()
    bench.relay.close()
    assert bench.publisher.closed


class Frozen(RecordingPublisher):
    """The process is frozen until its leases have ended: before it sends, or while it sends."""

    lazy = False
    bench: Bench

    def __init__(self, *, after: int = 0) -> None:
        super().__init__()
        self._after = after

    def publish(self, messages: Any, timeout: float) -> Any:
        yield from super().publish(self._frozen(messages), timeout)

    def _frozen(self, messages: Any) -> Any:
        for position, message in enumerate(messages):
            yield message
            if position + 1 == self._after:
                self.bench.pass_time(self.bench.config.lease + 1)


class TestLeases:
    def test_a_fast_batch_is_not_renewed(self) -> None:
        bench = Bench()
        bench.break_("renew")
        bench.add(3)
        assert bench.tick().published == 3

    def test_a_claim_that_took_long_is_renewed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It waited for a lock on the table, and its lease may have begun before that."""
        bench = Bench()
        bench.add(2)
        monkeypatch.setattr(bench.store, "claim", buffer_for(14, bench.here, bench.store.claim))
        renewed: list[Any] = []
        renew = bench.store.renew
        monkeypatch.setattr(
            bench.store, "renew", lambda *args: renewed.append(args) or renew(*args)
        )
        assert bench.tick().published == 2
        assert renewed == [([1, 2], 15.0, "first")]

    def test_no_row_can_be_taken_while_it_is_sent_however_slow_its_batch_is(self) -> None:
        class Slow(RecordingPublisher):
            lazy = False

            def publish(self, messages: Any, timeout: float) -> Any:
                bench.pass_time(9)
                taken.extend(bench.store.claim(10, 60, "second"))
                yield from super().publish(messages, timeout)

        taken: list[Any] = []
        bench = Bench(Slow())
        bench.publisher.break_on_task("poison", ConnectionResetError())
        bench.add(2)
        bench.add(task="poison")
        bench.add(2)
        while bench.store.rows and bench.store.rows[3].retries == 0:
            bench.tick()
            bench.pass_time(2)
        assert taken == []

    def test_a_frozen_relay_sends_only_what_no_other_took(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench = Bench()
        bench.add(3)
        claim = bench.store.claim

        def frozen(*args: Any, **kwargs: Any) -> Any:
            claimed = claim(*args, **kwargs)
            bench.pass_time(bench.config.lease + 1)
            assert len(claim(2, 60, "second")) == 2
            return claimed

        monkeypatch.setattr(bench.store, "claim", frozen)
        result = bench.tick()
        assert (result.claimed, result.published, result.fenced) == (3, 1, 2)
        assert len(bench.publisher.published) == 1
        assert {row.claimed_by for row in bench.store.rows.values()} == {"second"}

    def test_a_relay_that_freezes_while_it_sends_does_not_send_the_rest(self) -> None:
        bench = Bench(Frozen(after=2))
        bench.publisher.bench = bench
        bench.add(5)
        result = bench.tick()
        assert (result.published, result.released) == (2, 3)
        assert len(bench.publisher.published) == 2

    def test_a_frozen_relay_that_finds_no_database_sends_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench = Bench()
        bench.add(2)
        bench.break_("renew", "settle", "release")
        with monkeypatch.context() as patch:
            patch.setattr(bench.store, "claim", buffer_for(16, bench.here, bench.store.claim))
            with pytest.raises(StoreError):
                bench.tick()
        assert bench.publisher.batches == 0
        bench.break_()
        assert (bench.tick().released, bench.tick().published) == (2, 2)


class TestAfterAnOutageOfTheDatabase:
    EVERYTHING = ("claim", "renew", "settle", "release")

    def bench(self) -> tuple[Bench, Relay]:
        """A relay has published a batch, the database went away, and another relay is idle."""
        bench = Bench()
        other = bench.another("second")
        bench.add(3)
        bench.break_("settle")
        self.fails(bench.relay)
        bench.break_(*self.EVERYTHING)
        return bench, other

    def fails(self, *relays: Relay) -> None:
        for relay in relays:
            with pytest.raises(StoreError):
                relay.run_once()

    def test_a_published_batch_is_settled_by_its_owner_and_taken_by_no_other(self) -> None:
        bench, other = self.bench()
        for _ in range(12):  # a minute: four leases
            bench.pass_time(5)
            self.fails(bench.relay, other)
        bench.break_()
        bench.add()
        bench.pass_time(5)
        assert other.run_once().published == 1, "the new row, and none of the others"
        result = bench.tick()
        assert (result.published, result.fenced) == (3, 0)
        assert (len(bench.publisher.published), bench.store.rows) == (4, {})

    def test_after_a_lease_the_rows_of_a_relay_that_died_are_taken_over(self) -> None:
        bench, other = self.bench()
        bench.pass_time(20)
        self.fails(other)
        bench.break_()
        assert other.run_once() == BatchResult()
        bench.pass_time(bench.config.lease)
        assert other.run_once().published == 3

    def test_an_outage_that_the_service_saw_counts_too(self) -> None:
        bench, other = self.bench()
        bench.break_()
        bench.pass_time(bench.config.lease + 1)
        other.leave_orphans()
        assert other.run_once() == BatchResult()
