"""Held calls: claimed when they are due, seen and changed before that, dropped if they expired.

Part of `StoreContract`: `wait`, `scheduled`, `cancel`, `send_now`, and the `eta` of a claim.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from celery_outbox_steps.messages import Deferred, Expired, Published, Retry
from celery_outbox_steps.testing.contract.backend import LEASE, only

if TYPE_CHECKING:
    from celery_outbox_steps.testing.contract.backend import Backend


class SchedulingContract:
    """What is not due stays, and can still be changed."""

    def test_a_held_row_is_claimed_when_it_is_due_and_not_before(self, backend: Backend) -> None:
        backend.add(due_in=60, held=True)
        store = backend.store()
        assert store.claim(10, LEASE, "me") == []
        backend.pass_time(61)
        assert len(store.claim(10, LEASE, "me")) == 1

    def test_a_claim_tells_the_time_that_a_held_row_was_wanted_at(self, backend: Backend) -> None:
        backend.add(due_in=60, held=True)
        backend.add()
        backend.pass_time(70)
        at_once, held = sorted(backend.store().claim(10, LEASE, "me"), key=lambda each: each.held)
        assert (at_once.eta, at_once.held) == (None, 0.0)
        assert held.held == pytest.approx(60, abs=5)
        assert held.waited - held.held == pytest.approx(10, abs=5)
        due_at = next(row["due_at"] for row in backend.rows() if row["id"] == held.id)
        eta = datetime.fromisoformat(str(held.eta))
        assert eta.utcoffset() is not None
        assert eta.timestamp() == pytest.approx(
            due_at.timestamp() if isinstance(due_at, datetime) else due_at, abs=0.002
        )

    def test_a_wait_ends_when_the_next_row_is_due(self, backend: Backend) -> None:
        store = backend.store()
        backend.add(due_in=0.4, held=True)
        assert store.claim(10, LEASE, "me") == []
        began = time.monotonic()
        assert store.wait(20) is True
        assert time.monotonic() - began < 5
        assert len(store.claim(10, LEASE, "me")) == 1

    def test_a_row_that_falls_due_while_a_relay_looks_is_not_slept_over(
        self, backend: Backend
    ) -> None:
        store = backend.store()
        for milliseconds in list(range(1, 11)) * 5:
            backend.add(due_in=milliseconds / 1000, held=True)
            store.wake()  # as the caller's commit does
            while not store.claim(10, LEASE, "me"):
                assert store.wait(2), "the relay slept until the end of its pause"

    def test_a_row_that_is_due_and_not_claimed_does_not_end_the_next_wait(
        self, backend: Backend
    ) -> None:
        store = backend.store()
        backend.add(due_in=0.2, held=True)
        assert store.claim(10, LEASE, "me") == []
        assert store.wait(20) is True
        assert store.wait(0.01) is False

    def test_held_rows_are_no_backlog_before_they_are_due(self, backend: Backend) -> None:
        backend.add(3, due_in=60, held=True)
        store = backend.store()
        assert (store.sample().depth, store.sample().oldest_pending_seconds) == (0, 0.0)
        stats = store.stats()
        assert (stats.waiting, stats.scheduled, stats.oldest_due_seconds) == (0, 3, 0.0)
        backend.pass_time(70)
        assert store.sample().depth == 3
        assert store.sample().oldest_pending_seconds == pytest.approx(10, abs=5)

    def test_a_row_that_was_attempted_is_backlog_while_it_backs_off(self, backend: Backend) -> None:
        backend.add(due_in=60, held=True)
        backend.pass_time(70)
        store = backend.store()
        store.settle([Retry(only(store.claim(10, LEASE, "me")), "e", 100)], "me")
        sample = store.sample()
        assert (sample.depth, sample.backing_off) == (1, 1)
        assert sample.oldest_pending_seconds == pytest.approx(10, abs=5)
        assert sample.oldest_due_seconds == 0.0

    def test_held_rows_do_not_hide_failing_ones(self, backend: Backend) -> None:
        backend.add(task_name="shop.fails")
        store = backend.store()
        store.settle([Retry(only(store.claim(10, LEASE, "me")), "e", 60)], "me")
        backend.add(20, due_in=86_400, held=True)
        assert only(store.stats().top_failing)["task_name"] == "shop.fails"

    def test_an_expired_row_is_deleted(self, backend: Backend) -> None:
        backend.add(2)
        store = backend.store(retention=3600)
        one, two = store.claim(10, LEASE, "me")
        assert store.settle([Expired(one), Published(two)], "me") == 0
        assert [row["id"] for row in backend.rows()] == [two.id]
        assert backend.dead_letters() == []

    def test_what_is_scheduled_is_listed_the_next_one_first(self, backend: Backend) -> None:
        backend.add(due_in=200, task_id="later", task_name="shop.mail", held=True)
        backend.add(due_in=100, task_id="sooner", task_name="shop.remind", held=True)
        backend.add(task_id="due")
        store = backend.store()
        sooner, later = store.scheduled()
        assert (sooner.task_id, later.task_id) == ("sooner", "later")
        assert (sooner.task_name, sooner.args, sooner.kwargs) == ("shop.remind", "[]", "{}")
        assert sooner.seconds == pytest.approx(100, abs=5)
        assert datetime.fromisoformat(sooner.due_at).utcoffset() is not None
        assert [each.task_id for each in store.scheduled(limit=1)] == ["sooner"]
        assert [each.task_id for each in store.scheduled("shop.m*")] == ["later"]
        assert store.scheduled("shop.?") == []

    def test_a_cancelled_row_is_gone(self, backend: Backend) -> None:
        backend.add(due_in=60, task_id="held", held=True)
        backend.add(task_id="due")
        backend.add(task_id="other")
        store = backend.store()
        assert store.cancel(["held", "due", "unknown"]) == {"held": True, "due": True}
        assert [row["task_id"] for row in backend.rows()] == ["other"]
        assert store.cancel(["held"]) == {}

    def test_a_row_that_a_relay_holds_is_neither_cancelled_nor_sent_now(
        self, backend: Backend
    ) -> None:
        backend.add(task_id="claimed")
        assert len(backend.store().claim(10, LEASE, "me")) == 1
        before = backend.rows()
        assert backend.store().cancel(["claimed"]) == {}
        assert backend.store().send_now(["claimed"]) == []
        assert backend.rows() == before

    def test_a_cancelled_row_that_was_attempted_may_have_left(self, backend: Backend) -> None:
        backend.add(task_id="deferred")
        store = backend.store()
        store.settle([Deferred(only(store.claim(10, LEASE, "me")), "e", 60)], "me")
        backend.add(task_id="orphaned")
        store.claim(10, LEASE, "me")
        backend.pass_time(LEASE + 1)
        assert store.cancel(["deferred", "orphaned"]) == {"deferred": False, "orphaned": False}
        assert backend.rows() == []

    def test_a_kept_row_is_not_waiting(self, backend: Backend) -> None:
        backend.add(task_id="sent")
        store = backend.store(retention=3600)
        store.settle([Published(only(store.claim(10, LEASE, "me")))], "me")
        assert store.cancel(["sent"]) == {}
        assert store.send_now(["sent"]) == []

    def test_a_row_that_is_sent_now_is_due(self, backend: Backend) -> None:
        backend.add(due_in=60, task_id="held", held=True)
        store = backend.store()
        assert store.send_now(["held", "unknown"]) == ["held"]
        message = only(store.claim(10, LEASE, "me"))
        assert message.task_id == "held"
        assert message.waited - message.held == pytest.approx(0, abs=2)

    def test_a_late_row_that_is_sent_now_is_still_late(self, backend: Backend) -> None:
        backend.add(due_in=1, task_id="late", held=True)
        backend.pass_time(61)
        store = backend.store()
        store.settle([Deferred(only(store.claim(10, LEASE, "me")), "e", 60)], "me")
        assert store.send_now(["late"]) == ["late"]
        message = only(store.claim(10, LEASE, "me"))
        assert message.waited - message.held == pytest.approx(60, abs=2)

    def test_sending_a_due_row_now_does_not_move_it_behind_others(self, backend: Backend) -> None:
        backend.add(task_id="first")
        backend.add(task_id="second")
        store = backend.store()
        assert store.send_now(["first"]) == ["first"]
        assert [each.task_id for each in store.claim(10, LEASE, "me")] == ["first", "second"]

    def test_a_row_is_either_claimed_or_cancelled(self, backend: Backend) -> None:
        ids = [f"task-{number}" for number in range(60)]
        for task_id in ids:
            backend.add(task_id=task_id)

        def relay() -> list[str]:
            store, claimed = backend.store(), []
            while found := store.claim(3, LEASE, "relay"):
                claimed += [each.task_id for each in found]
            return claimed

        def user(own: list[str]) -> list[str]:
            store = backend.store()
            return [task_id for task_id in own if store.cancel([task_id])]

        with ThreadPoolExecutor(3) as pool:
            claims = pool.submit(relay)
            users = [pool.submit(user, ids[::-2]), pool.submit(user, ids[-2::-2])]
            cancelled = [task_id for each in users for task_id in each.result(60)]
            claimed = claims.result(60)
        assert sorted(claimed + cancelled) == sorted(ids)
        assert sorted(row["task_id"] for row in backend.rows()) == sorted(claimed)

    def test_cancelling_and_settling_do_not_deadlock(self, backend: Backend) -> None:
        """A user cancels calls while a relay publishes their neighbours."""
        ids = [f"task-{number}" for number in range(400)]
        for task_id in ids:
            backend.add(task_id=task_id)

        def relay() -> int:
            store, settled = backend.store(), 0
            while found := store.claim(20, LEASE, "relay"):
                fresh = [each for each in found[::4] if not each.attempted]
                gone = [Published(each) for each in found if each not in fresh]
                store.settle([*(Deferred(each, "e", 0) for each in fresh), *gone], "relay")
                settled += len(gone)
            return settled

        def user() -> int:
            store = backend.store()
            return sum(len(store.cancel(ids[n : n + 40][::-1])) for n in range(0, 400, 10))

        with ThreadPoolExecutor(2) as pool:
            settled, cancelled = pool.submit(relay), pool.submit(user)
            assert settled.result(60) + cancelled.result(60) == len(ids)
        assert backend.rows() == []
