"""The publish step keeps the messages of a key in order, and lets all others go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.utils.json import dumps

from celery_outbox_steps.errors import Interrupted, Nacked, describe
from celery_outbox_steps.relay.prefetch import PrefetchThread
from celery_outbox_steps.testing import RecordingPublisher
from tests.unit.test_relay import EXPIRING, Bench

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_outbox_steps.messages import Message, Receipt


class Rounds(RecordingPublisher):
    """Remembers which messages were handed over together."""

    lazy = False

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[list[str]] = []

    def publish(self, messages: Iterable[Message], timeout: float) -> Iterator[Receipt]:
        together = list(messages)
        self.rounds.append([each.headers["task"] for each in together])
        return super().publish(together, timeout)


def bench_with(*names: str, **config: Any) -> Bench:
    """A relay with rows such as "a1": the first message with the key a. "-1" has none."""
    bench = Bench(Rounds(), **config)
    for name in names:
        bench.add(task=name, order_key=None if name[0] == "-" else name[0])
    return bench


def rounds_of(bench: Bench) -> list[list[str]]:
    assert isinstance(bench.publisher, Rounds)
    return bench.publisher.rounds


def arrived(bench: Bench) -> list[str]:
    return [each.headers["task"] for each in bench.publisher.published]


def waiting(bench: Bench) -> list[str]:
    return [row.task_name for row in bench.store.rows.values()]


def test_messages_without_a_key_go_together() -> None:
    bench = bench_with("-1", "-2", "-3")
    assert bench.tick().published == 3
    assert rounds_of(bench) == [["-1", "-2", "-3"]]


def test_a_message_is_sent_when_the_one_before_it_is_confirmed() -> None:
    bench = bench_with("a1", "b1", "a2", "-1", "a3")
    assert bench.tick().published == 5
    assert rounds_of(bench) == [["a1", "b1", "-1"], ["a2"], ["a3"]]


def test_the_order_is_that_of_the_rows_and_not_of_their_due_times() -> None:
    bench = bench_with("a1", "a2")
    bench.store.rows[2].due_at = bench.clock.now - 60
    bench.tick()
    assert arrived(bench) == ["a1", "a2"]


def test_one_that_fails_holds_back_its_successors_alone() -> None:
    bench = bench_with("a1", "a2", "b1", "b2", backoff_time=10)
    bench.publisher.fail_task("a1", Nacked("no"))
    result = bench.tick()
    assert (result.published, result.retried, result.released) == (2, 1, 1)
    assert arrived(bench) == ["b1", "b2"]
    assert bench.tick().claimed == 0, "a2 waits for a1"
    bench.publisher.heal()
    bench.pass_time(20)
    assert [bench.tick().published, bench.tick().published] == [1, 1]
    assert arrived(bench) == ["b1", "b2", "a1", "a2"]


def test_a_dead_letter_holds_back_too_until_it_is_gone() -> None:
    bench = bench_with("a1", "a2")
    bench.publisher.fail_task("a1", TypeError("not sendable"))
    assert bench.tick().dead == 1
    bench.pass_time(3600)
    assert bench.tick().claimed == 0
    bench.store.dead_letters.clear()
    assert bench.tick().published == 1
    assert arrived(bench) == ["a2"]


def test_one_that_expired_holds_nothing_back() -> None:
    bench = Bench(Rounds())
    bench.add(task="a1", order_key="a", held=True, options=dumps(EXPIRING))
    bench.add(task="a2", order_key="a")
    bench.pass_time(3600)
    result = bench.tick()
    assert (result.expired, result.published) == (1, 1)


def test_an_interruption_in_a_round_lets_nothing_pass() -> None:
    bench = bench_with("a1", "a2", "b1", "b2")
    bench.publisher.break_on_task("a1", ConnectionResetError("reset"))
    bench.publisher.can_tell = False
    bench.tick()
    assert "a2" not in arrived(bench)
    bench.publisher.heal()
    bench.pass_time(3600)
    for _ in range(3):
        bench.tick()
    assert [each for each in arrived(bench) if each[0] == "a"] == ["a1", "a2"]
    firsts = list(dict.fromkeys(each for each in arrived(bench) if each[0] == "b"))
    assert firsts == ["b1", "b2"]


def test_an_outage_between_two_rounds_defers_the_rest() -> None:
    class Dying(Rounds):
        def publish(self, messages: Iterable[Message], timeout: float) -> Iterator[Receipt]:
            if self.rounds:
                self.down = ConnectionRefusedError("nobody listens")
            return super().publish(messages, timeout)

    bench = Bench(Dying())
    for name in ("a1", "a2", "a3"):
        bench.add(task=name, order_key="a")
    result = bench.tick()
    assert (result.published, result.deferred) == (1, 2)
    assert [row.retries for row in bench.store.rows.values()] == [0, 0]


def test_a_stop_between_two_rounds_gives_the_rest_back() -> None:
    class Stopping(Rounds):
        def publish(self, messages: Iterable[Message], timeout: float) -> Iterator[Receipt]:
            bench.stopping = True
            return super().publish(messages, timeout)

    bench = Bench(Stopping())
    for name in ("a1", "a2", "a3"):
        bench.add(task=name, order_key="a")
    result = bench.tick()
    assert (result.published, result.released) == (1, 2)


def test_rounds_end_after_the_send_timeout_and_what_was_sent_is_settled() -> None:
    class Slow(Rounds):
        def publish(self, messages: Iterable[Message], timeout: float) -> Iterator[Receipt]:
            bench.pass_time(4)
            return super().publish(messages, timeout)

    bench = Bench(Slow(), send_timeout=10, stale_timeout=600)
    for number in range(9):
        bench.add(task=f"a{number}", order_key="a")
    result = bench.tick()
    assert (result.published, result.released) == (3, 6)
    assert bench.leased == 0
    assert bench.tick().published == 3


def test_the_lease_is_kept_through_many_rounds() -> None:
    class Slow(Rounds):
        def publish(self, messages: Iterable[Message], timeout: float) -> Iterator[Receipt]:
            bench.pass_time(3)
            return super().publish(messages, timeout)

    bench = Bench(Slow(), send_timeout=10, stale_timeout=15)
    for number in range(4):
        bench.add(task=f"a{number}", order_key="a")
    assert bench.tick().fenced == 0
    assert arrived(bench) == ["a0", "a1", "a2", "a3"]


def test_of_two_relays_the_second_takes_no_successor_of_what_the_first_one_holds() -> None:
    bench = bench_with("a1", "a2", "b1")
    held = bench.store.claim(1, 60, "first")
    assert [row.task_name for row in held] == ["a1"]
    other = bench.another("second")
    assert other.run_once().published == 1
    assert arrived(bench) == ["b1"]
    bench.store.release([held[0].id], "first")
    assert [other.run_once().published, other.run_once().published] == [1, 1]
    assert arrived(bench) == ["b1", "a1", "a2"]


def test_a_batch_that_was_claimed_ahead_waits_for_one_that_failed() -> None:
    thread = PrefetchThread()
    bench = Bench(Rounds(), batch_size=2, backoff_time=10)
    for name in ("a1", "b1", "a2", "b2"):
        bench.add(task=name, order_key=name[0])
    relay = bench.another("ahead", prefetch=thread)
    bench.publisher.fail_task("a1", Nacked("no"))
    try:
        for _ in range(4):
            relay.run_once()
        assert arrived(bench) == ["b1", "b2"]
        bench.publisher.heal()
        bench.pass_time(20)
        for _ in range(4):
            relay.run_once()
    finally:
        thread.close()
    assert arrived(bench) == ["b1", "b2", "a1", "a2"]
    assert waiting(bench) == []


def test_one_with_a_history_is_sent_alone_and_in_its_place() -> None:
    bench = bench_with("a1", "a2", "a3")
    bench.store.rows[2].retries = 1
    for _ in range(3):
        bench.tick()
        bench.pass_time(2)
    assert arrived(bench) == ["a1", "a2", "a3"]


class Silent(Rounds):
    """Does not answer from one round on, for a number of attempts."""

    def __init__(self, after: int, attempts: int) -> None:
        super().__init__()
        self.silent = range(after, after + attempts)
        self.can_tell = True

    def publish(self, messages: Iterable[Message], timeout: float) -> Iterator[Receipt]:
        number = len(self.rounds)
        receipts = super().publish(messages, timeout)
        if number in self.silent:
            error = TimeoutError("no answer")
            raise Interrupted(describe(error)) from error
        return receipts

    def reachable(self, timeout: float) -> bool:
        """It is back when the last attempt has failed."""
        return self.can_tell and len(self.rounds) >= self.silent.stop


def test_a_broker_that_comes_back_while_a_message_is_suspected_costs_no_retry() -> None:
    bench = Bench(Silent(after=0, attempts=2))
    bench.add(task="a1", order_key="a")
    result = bench.tick()
    assert (result.published, result.retried) == (1, 0)


def test_an_answer_of_an_earlier_round_accuses_nobody() -> None:
    publisher = Silent(after=1, attempts=2)
    publisher.can_tell = False
    bench = Bench(publisher)
    for name in ("a1", "a2", "a3"):
        bench.add(task=name, order_key="a")
    result = bench.tick()
    assert (result.published, result.retried, result.deferred) == (1, 0, 2)
    assert result.outage


def test_a_message_that_is_never_answered_while_the_broker_is_alive_has_failed() -> None:
    publisher = Silent(after=0, attempts=3)
    publisher.reachable = lambda timeout: True  # type: ignore[method-assign]
    bench = Bench(publisher)
    bench.add(task="a1", order_key="a")
    assert bench.tick().retried == 1
