"""Release rates: what all relays together send in a time, and what becomes of the rest.

Part of `StoreContract`: `LaneStore.pace`, for the app's own broker and for a destination. The
arithmetic is `celery_outbox_steps.rates`, which has tests of its own.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from celery_outbox_steps.messages import Published
from celery_outbox_steps.rates import Rate
from celery_outbox_steps.testing.contract.backend import LEASE, ids_of, only
from celery_outbox_steps.testing.contract.destinations import LAKE, lane_of

if TYPE_CHECKING:
    from celery_outbox_steps.store import LaneStore
    from celery_outbox_steps.testing.contract.backend import Backend

TEN = Rate("mail.*", 10.0)
STEP = 0.5
"""Seconds between two claims."""
in_each_lane = pytest.mark.parametrize("name", [None, LAKE], ids=["own broker", "destination"])


class PacingContract:
    """A rate bounds all relays together; rows beyond it wait in the table for their turns."""

    @in_each_lane
    def test_what_exceeds_the_rate_is_given_back_for_later(
        self, backend: Backend, name: str | None
    ) -> None:
        rows, lane = backend.add(15, destination=name), open_lane(backend, name)
        claimed = lane.claim(20, LEASE, "me")
        granted = lane.pace(TEN, claimed, "me")
        assert granted == set(rows[:10]), "a second's worth at once"
        rest = [row for row in backend.rows(name) if row["id"] not in granted]
        assert [row["claimed_by"] for row in rest] == [None] * 5
        delays = [backend.seconds_until(row["due_at"]) for row in rest]
        assert delays == sorted(delays)
        assert -1 < delays[0] < delays[-1] < 3
        assert lane.settle([Published(each) for each in claimed if each.id in granted], "me") == 0

    @in_each_lane
    def test_a_rate_is_shared_by_all_relays(self, backend: Backend, name: str | None) -> None:
        backend.add(30, destination=name)
        granted: list[int] = []
        for relay in ("first", "second", "third"):
            each = open_lane(backend, name)
            granted += each.pace(TEN, each.claim(10, LEASE, relay), relay)
        assert len(granted) in (10, 11)

    @in_each_lane
    def test_the_rate_is_reached_and_never_exceeded_and_nothing_is_lost(
        self, backend: Backend, name: str | None
    ) -> None:
        rows = backend.add(60, destination=name)
        sent: list[tuple[float, int]] = []
        now = 0.0
        while backend.rows(name) and now < 20:
            for relay in ("a", "b"):
                each = open_lane(backend, name)  # it has no idea of the time that passed
                claimed = each.claim(20, LEASE, relay)
                granted = each.pace(TEN, claimed, relay) if claimed else set()
                sent += [(now, row) for row in granted]
                each.settle([Published(row) for row in claimed if row.id in granted], relay)
            backend.pass_time(STEP)
            now += STEP
        assert sorted(row for _, row in sent) == rows
        assert now <= 60 / TEN.per_second * 1.5
        for begin in range(int(now)):
            window = [row for moment, row in sent if begin <= moment < begin + 2]
            assert len(window) <= 2 * 10 + 10 + 5, "the rate, a burst, and the time of the test"

    def test_a_row_that_has_waited_goes_before_new_ones(self, backend: Backend) -> None:
        rows, lane = backend.add(12), backend.store()
        lane.pace(TEN, lane.claim(20, LEASE, "me"), "me")
        backend.pass_time(0.35)
        new = backend.add(5, due_in=-60)
        later = backend.store()
        claimed = later.claim(20, LEASE, "me")
        assert ids_of(claimed)[:5] == new, "which are due before it"
        assert set(rows[10:]) <= later.pace(TEN, claimed, "me")

    def test_rates_do_not_share(self, backend: Backend) -> None:
        backend.add(20)
        lane = backend.store()
        claimed = lane.claim(20, LEASE, "me")
        assert len(lane.pace(TEN, claimed[:10], "me")) == 10
        assert len(lane.pace(TEN._replace(pattern="sms.*"), claimed[10:], "me")) == 10
        assert set(lane.rates()) == {"mail.*", "sms.*"}

    @in_each_lane
    def test_other_rates_end_the_turns_of_those_that_wait(
        self, backend: Backend, name: str | None
    ) -> None:
        """Else rows that were planned by a slow rate would keep it, perhaps for months."""
        rows, lane, slow = backend.add(9, destination=name), open_lane(backend, name), Rate("*", 1)
        claimed = lane.claim(20, LEASE, "me")
        assert len(lane.pace(slow, claimed, "me")) == 1
        store = backend.store()
        assert store.use_rates([slow]) == 0
        assert store.use_rates([TEN, slow]) == 0, "its speed is as before"
        assert store.use_rates([slow._replace(per_second=20.0)]) == 8
        again = open_lane(backend, name).claim(20, LEASE, "other")
        assert ids_of(again) == rows[1:]
        faster = open_lane(backend, name).pace(slow._replace(per_second=20.0), again, "other")
        assert len(faster) == 8

    @in_each_lane
    def test_without_the_rate_those_that_wait_are_due(
        self, backend: Backend, name: str | None
    ) -> None:
        rows, lane = backend.add(9, destination=name), open_lane(backend, name)
        scheduled = backend.add(due_in=60, destination=name)
        lane.pace(Rate("*", 1 / 3600), lane.claim(20, LEASE, "me"), "me")
        store = backend.store()
        assert store.use_rates([]) == 8
        assert store.use_rates([]) == 0
        assert ids_of(open_lane(backend, name).claim(20, LEASE, "other")) == rows[1:]
        assert only(row["id"] for row in backend.rows(name) if row["claimed_by"] is None) == only(
            scheduled
        )

    @in_each_lane
    def test_an_orphan_that_is_given_back_stays_one(
        self, backend: Backend, name: str | None
    ) -> None:
        backend.add(2, destination=name)
        open_lane(backend, name).claim(1, LEASE, "dead relay")
        backend.pass_time(LEASE + 1)
        me, one = open_lane(backend, name), Rate("*", 0.01)
        claimed = me.claim(10, LEASE, "me")
        assert [row.orphaned for row in claimed] == [True, False]
        assert me.pace(one, claimed[1:], "me") == {claimed[1].id}
        assert me.pace(one, claimed[:1], "me") == set()
        backend.pass_time(LEASE)
        again = next(
            row for row in me.claim(10, LEASE, "me", adopt=True) if row.id == claimed[0].id
        )
        assert again.orphaned

    @in_each_lane
    def test_a_row_of_another_relay_is_not_given_back(
        self, backend: Backend, name: str | None
    ) -> None:
        row = only(backend.add(destination=name))
        slow = open_lane(backend, name)
        claimed = slow.claim(10, LEASE, "slow")
        backend.pass_time(LEASE + 1)
        assert ids_of(open_lane(backend, name).claim(10, LEASE, "successor")) == [row]
        before = backend.rows(name)
        one = Rate("*", 0.01)
        assert [len(slow.pace(one, claimed, "slow")) for _ in range(2)] == [1, 0]
        assert backend.rows(name) == before

    def test_relays_that_ask_at_the_same_time_share_it_too(self, backend: Backend) -> None:
        backend.add(60)

        def relay(number: int) -> int:
            lane, name = backend.store(), f"relay {number}"
            return sum(len(lane.pace(TEN, lane.claim(5, LEASE, name), name)) for _ in range(4))

        with ThreadPoolExecutor(3) as pool:
            assert 10 <= sum(pool.map(relay, range(3))) <= 30


def open_lane(backend: Backend, name: str | None) -> LaneStore:
    return backend.store() if name is None else lane_of(backend, name)
