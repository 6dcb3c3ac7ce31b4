"""Rows with a key: none is handed out before every earlier one of its key is published.

Part of `StoreContract`: what `LaneStore.claim` promises about an `order_key`, whatever keeps the
earlier row, and that nothing waits for longer than it has to.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest

from celery_outbox_steps.messages import Dead, Deferred, Expired, Published, Retry
from celery_outbox_steps.rates import Rate
from celery_outbox_steps.store import DeadLetters
from celery_outbox_steps.testing.contract.backend import LEASE, ids_of, only, repeat_until
from celery_outbox_steps.testing.contract.destinations import LAKE, OTHER, lane_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_outbox_steps.messages import ClaimedMessage, Outcome
    from celery_outbox_steps.store import DestinationStore
    from celery_outbox_steps.testing.contract.backend import Backend

    Blocks = Callable[[DestinationStore, ClaimedMessage], object]

PAUSE = 600.0
SLOW = Rate("*", 0.01)
EARLIER_ROW: dict[str, Blocks] = {
    "leased by another relay": lambda *_: None,
    "backing off": lambda lane, row: lane.settle([Retry(row, "no", PAUSE)], "other"),
    "deferred": lambda lane, row: lane.settle([Deferred(row, "no", PAUSE)], "other"),
    "dead": lambda lane, row: lane.settle([Dead(row, "no", 1)], "other"),
    "waiting for its turn": lambda lane, row: [lane.pace(SLOW, [row], "other") for _ in range(2)],
}
each_earlier_row = pytest.mark.parametrize("block", EARLIER_ROW.values(), ids=EARLIER_ROW)


class OrderingContract:
    """An earlier row holds back the later ones of its key, and no others."""

    def test_the_rows_of_a_key_come_together_in_their_order(self, backend: Backend) -> None:
        rows = add(backend, "k", "k", "l", "k")
        claimed = lane_of(backend).claim(10, LEASE, "me")
        assert ids_of(claimed) == rows
        assert [message.order_key for message in claimed] == ["k", "k", "l", "k"]

    @each_earlier_row
    def test_a_later_row_waits_while_the_earlier_one_is(
        self, backend: Backend, block: Blocks
    ) -> None:
        first, second = add(backend, "k", "k")
        other = lane_of(backend)
        block(other, only(other.claim(1, LEASE, "other")))
        free = add(backend, "l", None, "m", None)
        lane = lane_of(backend)
        assert ids_of(lane.claim(10, LEASE, "me")) == free, "others do not wait"
        backend.pass_time(PAUSE + LEASE)
        backend.store().replay(DeadLetters())
        assert published(backend)["k"] == [first, second]

    def test_a_later_row_waits_for_one_that_is_wanted_later(self, backend: Backend) -> None:
        first = only(backend.add(destination=LAKE, order_key="k", due_in=PAUSE, held=True))
        second, free = add(backend, "k", "l")
        assert ids_of(lane_of(backend).claim(10, LEASE, "me")) == [free]
        backend.pass_time(PAUSE + LEASE)
        assert published(backend)["k"] == [first, second]

    def test_a_later_row_that_is_due_earlier_waits(self, backend: Backend) -> None:
        first, second = add(backend, "k", "k", due_in=-10)
        backend.add(destination=LAKE, due_in=-5)
        lane = lane_of(backend)
        lane.settle([Retry(only(lane.claim(1, LEASE, "me")), "no", 0.0)], "me")
        claims = [ids_of(lane.claim(1, LEASE, "me")) for _ in range(4)]
        assert [each for claim in claims for each in claim if each in (first, second)] == [first]

    @pytest.mark.parametrize("orphans", [True, False])
    def test_a_later_row_waits_for_one_with_an_expired_lease(
        self, backend: Backend, orphans: bool
    ) -> None:
        first, second = add(backend, "k", "k")
        lane_of(backend).claim(1, LEASE, "dead relay")
        backend.pass_time(LEASE + 1)
        lane = lane_of(backend)
        taken_over = [first, second] if orphans else []
        assert ids_of(lane.claim(10, LEASE, "me", orphans=orphans)) == taken_over
        assert ids_of(lane_of(backend).claim(10, LEASE, "third")) == ([] if orphans else [first])

    def test_a_later_row_waits_for_one_that_the_relay_itself_claimed_and_lost(
        self, backend: Backend
    ) -> None:
        first, second = add(backend, "k", "k")
        lane = lane_of(backend)
        lane.claim(1, LEASE, "me")  # and the answer was lost
        assert lane.claim(10, LEASE, "me") == []
        assert ids_of(lane.claim(1, LEASE, "me", adopt=True)) == [first]
        assert ids_of(lane.claim(1, LEASE, "me", in_hand=[first])) in ([], [second])

    def test_a_row_follows_one_that_the_relay_has_in_hand(self, backend: Backend) -> None:
        first, second, third = add(backend, "k", "k", "k")
        lane = lane_of(backend)
        assert ids_of(lane.claim(1, LEASE, "me")) == [first]
        assert ids_of(lane.claim(1, LEASE, "me", in_hand=[first])) == [second]
        assert ids_of(lane_of(backend).claim(9, LEASE, "other", in_hand=[first, second])) == []
        assert ids_of(lane.claim(9, LEASE, "me", in_hand=[first, second])) in ([], [third])

    def test_a_row_does_not_follow_one_in_hand_that_another_relay_took_over(
        self, backend: Backend
    ) -> None:
        first, second = add(backend, "k", "k")
        lane = lane_of(backend)
        lane.claim(1, LEASE, "me")
        backend.pass_time(LEASE + 1)
        assert ids_of(lane_of(backend).claim(1, LEASE, "other")) == [first]
        assert ids_of(lane.claim(10, LEASE, "me", in_hand=[first])) == []
        assert second in ids(backend)

    def test_the_next_row_is_free_as_soon_as_the_one_before_it_is_settled(
        self, backend: Backend
    ) -> None:
        first, second, third = add(backend, "k", "k", "k")
        lane, other = lane_of(backend), lane_of(backend)
        for row, outcome in ((first, Published), (second, Expired)):
            message = only(lane.claim(1, LEASE, "me"))
            assert message.id == row
            assert other.claim(10, LEASE, "other") == [], "and holds the next one back"
            assert lane.settle([outcome(message)], "me") == 0
        assert ids_of(other.claim(1, LEASE, "other")) == [third]

    @pytest.mark.parametrize("retention", [None, 3600])
    def test_a_kept_row_holds_nothing_back(self, backend: Backend, retention: float | None) -> None:
        _, second = add(backend, "k", "k")
        lane = lane_of(backend, retention=retention)
        lane.settle([Published(only(lane.claim(1, LEASE, "me")))], "me")
        assert ids_of(lane.claim(10, LEASE, "me")) == [second]
        assert len(backend.rows(LAKE)) == (1 if retention is None else 2)

    def test_a_settle_that_was_fenced_off_frees_nothing(self, backend: Backend) -> None:
        first, second = add(backend, "k", "k")
        slow = lane_of(backend)
        message = only(slow.claim(1, LEASE, "slow"))
        backend.pass_time(LEASE + 1)
        assert ids_of(lane_of(backend).claim(1, LEASE, "successor")) == [first]
        assert lane_of(backend).claim(10, LEASE, "third") == []
        for _ in range(2):
            assert slow.settle([Published(message)], "slow") == 1
            assert lane_of(backend).claim(10, LEASE, "third") == []
        assert ids(backend) == [first, second]

    def test_released_rows_come_again_in_their_order(self, backend: Backend) -> None:
        rows = add(backend, "k", "l", "k", "l")
        lane = lane_of(backend)
        lane.settle([Published(lane.claim(10, LEASE, "me")[0])], "me")
        assert lane.release(rows[1:], "me") == 3
        assert published(backend) == {"k": [rows[2]], "l": [rows[1], rows[3]]}

    def test_a_replayed_dead_letter_has_its_former_place(self, backend: Backend) -> None:
        rows = add(backend, "k", "k", "k")
        lane = lane_of(backend)
        first = only(lane.claim(1, LEASE, "me"))
        lane.settle([Published(first)], "me")
        lane.settle([Dead(only(lane.claim(1, LEASE, "me")), "no", 1)], "me")
        assert lane.claim(10, LEASE, "me") == []
        assert backend.store().replay(DeadLetters()) == 1
        assert published(backend)["k"] == rows[1:]

    def test_dead_letters_of_a_key_can_be_replayed_in_any_order(self, backend: Backend) -> None:
        rows = add(backend, "k", "k", "k", "l")
        lane = lane_of(backend)
        claimed = lane.claim(3, LEASE, "me")
        lane.settle([Dead(message, "no", 1) for message in claimed], "me")
        letters = [letter["id"] for letter in backend.dead_letters()]
        for letter in reversed(letters):
            assert "k" not in published(backend)
            backend.store().replay(DeadLetters(ids=[letter]))
        assert published(backend)["k"] == rows[:3]

    @pytest.mark.parametrize("how", ["purge", "cancel"])
    def test_what_is_discarded_holds_nothing_back(self, backend: Backend, how: str) -> None:
        first, second = add(backend, "k", task_id="first") + add(backend, "k")
        store, lane = backend.store(), lane_of(backend)
        message = only(lane.claim(1, LEASE, "me"))
        assert lane_of(backend).claim(10, LEASE, "other") == []
        if how == "purge":
            lane.settle([Dead(message, "no", 1)], "me")
            assert store.purge_dead_letters(DeadLetters()) == 1
        else:
            lane.settle([Retry(message, "no", PAUSE)], "me")
            assert store.cancel(["first"]) == {"first": False}
        assert published(backend)["k"] == [second]
        assert first not in ids(backend)

    def test_the_same_key_of_another_destination_is_another_key(self, backend: Backend) -> None:
        backend.add(destination=LAKE, order_key="k")
        (row,) = backend.add(destination=OTHER, order_key="k")
        lane_of(backend).claim(1, LEASE, "me")
        assert ids_of(lane_of(backend, OTHER).claim(10, LEASE, "me")) == [row]

    def test_many_rows_that_wait_hide_none_that_do_not(self, backend: Backend) -> None:
        add(backend, "k", *["k"] * 50, due_in=-10)
        lane_of(backend).claim(1, LEASE, "other")
        free = only(backend.add(destination=LAKE))
        assert ids_of(lane_of(backend).claim(5, LEASE, "me")) == [free]

    def test_rows_that_wait_are_counted_as_held_back(self, backend: Backend) -> None:
        add(backend, "k", "k", "k", due_in=-100)
        other, lane = lane_of(backend), lane_of(backend)
        message = only(other.claim(1, LEASE, "other"))
        assert lane.claim(10, LEASE, "me") == []
        stats, sample = backend.store().stats(destination=LAKE), lane.sample()
        assert (stats.held_back, stats.in_flight, stats.in_outbox) == (2, 1, 3)
        assert (sample.held_back, sample.waiting, sample.depth) == (2, 0, 1)
        other.settle([Published(message)], "other")
        assert len(published(backend)["k"]) == 2

    def test_an_orphan_that_waits_stays_one(self, backend: Backend) -> None:
        add(backend, "k", "k")
        dead, lane = lane_of(backend), lane_of(backend)
        rows = dead.claim(10, LEASE, "dead relay")
        backend.pass_time(LEASE + 1)
        assert len(lane.claim(1, LEASE, "me")) == 1
        assert lane_of(backend).claim(10, LEASE, "third") == []
        lane.settle([Published(rows[0])], "me")
        message = only(lane.claim(10, LEASE, "me"))
        assert (message.id, message.orphaned) == (rows[1].id, True)

    def test_relays_side_by_side_keep_the_order_of_each_key(self, backend: Backend) -> None:
        """With refusals, releases and outages, by relays that claim ahead."""
        rows: dict[str, list[int]] = defaultdict(list)
        for key in "abcdefgh" * 10 + "ab" * 20 + "a" * 30:
            rows[key] += add(backend, key)
        broker = FailingBroker()

        def relay(number: int) -> None:
            lane, name = lane_of(backend), f"relay {number}"
            for _ in repeat_until(lambda: not ids(backend)):
                claimed = lane.claim(12, LEASE, name)
                ahead = lane.claim(12, LEASE, name, in_hand=ids_of(claimed))
                outcomes = broker.publish(claimed)
                assert lane.settle(outcomes, name) == 0
                if all(isinstance(each, Published) for each in outcomes):
                    assert lane.settle(broker.publish(ahead), name) == 0
                lane.release(ids_of([*claimed, *ahead]), name)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(relay, range(3)))
        assert broker.received == rows


class FailingBroker:
    """Refuses one message in seven. The others of its key are not sent then."""

    def __init__(self) -> None:
        self.received: dict[str, list[int]] = defaultdict(list)
        self._numbers = itertools.count()

    def publish(self, batch: list[ClaimedMessage]) -> list[Outcome]:
        failed: set[str | None] = set()
        outcomes: list[Outcome] = []
        for message in sorted(batch, key=attrgetter("id")):
            if message.order_key in failed:
                continue
            number = next(self._numbers)
            if number % 7:
                self.received[str(message.order_key)].append(message.id)
                outcomes.append(Published(message))
            else:
                failed.add(message.order_key)
                error = Retry if number % 2 else Deferred
                outcomes.append(error(message, "no", 0.0))
        return outcomes


def add(backend: Backend, *keys: str | None, **columns: Any) -> list[int]:
    """A row for each key, all for one destination."""
    return [only(backend.add(destination=LAKE, order_key=key, **columns)) for key in keys]


def ids(backend: Backend) -> list[int]:
    return [row["id"] for row in backend.rows(LAKE)]


def published(backend: Backend) -> dict[str | None, list[int]]:
    """By key, what a relay publishes that claims as long as there is something."""
    lane = lane_of(backend)
    found: dict[str | None, list[int]] = defaultdict(list)
    while claimed := lane.claim(10, LEASE, "the last"):
        for message in claimed:
            found[message.order_key].append(message.id)
        lane.settle([Published(message) for message in claimed], "the last")
    return found
