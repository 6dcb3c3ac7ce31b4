"""Apart from the path of a message: statistics, purging, waiting, and a store that was closed.

Part of `StoreContract`: `sample`, `stats`, `purge_published`, `wait`, `wake` and `close`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from celery_outbox_steps.messages import Dead, Published, Retry
from celery_outbox_steps.testing.contract.backend import LEASE, only

if TYPE_CHECKING:
    from celery_outbox_steps.testing.contract.backend import Backend


class MaintenanceContract:
    """What operators and an idle relay use of a store."""

    def test_purge_removes_old_published_rows_in_chunks(self, backend: Backend) -> None:
        store = backend.store(retention=3600)
        backend.add(5)
        store.settle([Published(m) for m in store.claim(10, LEASE, "me")], "me")
        backend.pass_time(100)
        backend.add(1)
        store.settle([Published(m) for m in backend.store().claim(10, LEASE, "me")], "me")
        waiting = backend.add(1)
        assert store.count_published(50) == 5
        assert [store.purge_published(50, limit=2) for _ in range(4)] == [2, 2, 1, 0]
        assert len(backend.rows()) == 2
        assert backend.rows()[-1]["id"] == waiting[0]

    def test_an_empty_outbox_counts_zero(self, backend: Backend) -> None:
        sample = backend.store().sample()
        assert (sample.depth, sample.dead_letters, sample.failed_tasks) == (0, 0, 0)
        assert (sample.oldest_pending_seconds, sample.oldest_due_seconds) == (0.0, 0.0)
        stats = backend.store().stats()
        assert (stats.in_outbox, stats.failing, stats.published) == (0, 0, 0)
        assert stats.oldest_due_seconds == 0.0
        assert stats.capped is False

    def test_stats_and_sample_count_what_is_there(self, backend: Backend) -> None:
        store = backend.store(retention=3600)
        backend.add(4, task_name="shop.mail")
        one, two, three = store.claim(3, LEASE, "me")
        store.settle([Published(one), Retry(two, "boom", 60), Dead(three, "no", 1)], "me")
        backend.pass_time(50)
        assert len(backend.store().claim(1, LEASE, "other")) == 1
        stats = store.stats()
        assert (stats.in_outbox, stats.failing) == (2, 1)
        assert (stats.waiting, stats.scheduled) == (0, 0)
        assert (stats.in_flight, stats.backing_off) == (1, 1)
        assert (stats.dead_letters, stats.published) == (1, 1)
        relay = only(stats.holders)
        assert (relay["relay"], relay["rows"]) == ("other", 1)
        assert relay["seconds_left"] == pytest.approx(LEASE, abs=20)
        failing = {"task_name": "shop.mail", "rows": 1, "last_error": "boom"}
        assert stats.top_failing == (failing,)
        assert store.stats(top=0).top_failing == ()
        sample = store.sample()
        assert (sample.depth, sample.dead_letters) == (2, 1)
        assert (sample.waiting, sample.scheduled) == (0, 0)
        assert (sample.in_flight, sample.backing_off) == (1, 1)
        assert sample.oldest_pending_seconds == pytest.approx(50, abs=20)

    def test_the_oldest_due_row_is_the_one_that_has_been_due_longest(
        self, backend: Backend
    ) -> None:
        store = backend.store()
        backend.add(1, due_in=3600)
        assert store.stats().oldest_due_seconds == store.sample().oldest_due_seconds == 0.0
        assert store.stats().scheduled == store.sample().scheduled == 1
        backend.add()
        backend.pass_time(50)
        assert len(store.claim(1, LEASE, "me")) == 1
        assert store.stats().oldest_due_seconds == pytest.approx(50, abs=20)
        assert store.sample().oldest_due_seconds == pytest.approx(50, abs=20)

    def test_a_wait_ends_by_itself(self, backend: Backend) -> None:
        assert backend.store().wait(0.01) is False

    def test_a_wake_from_another_thread_ends_a_wait(self, backend: Backend) -> None:
        store = backend.store()
        store.claim(1, LEASE, "me")
        answers = []
        thread = threading.Thread(target=lambda: answers.append(store.wait(60)))
        thread.start()
        store.wake()
        thread.join(20)
        assert answers == [True]

    def test_many_wakes_count_as_one(self, backend: Backend) -> None:
        store = backend.store()
        for _ in range(100_000):
            store.wake()
        assert store.wait(10) is True
        assert store.wait(0.01) is False

    def test_a_store_can_be_used_again_after_close(self, backend: Backend) -> None:
        backend.add()
        store = backend.store()
        store.check()
        store.close()
        store.close()
        assert len(store.claim(1, LEASE, "me")) == 1
