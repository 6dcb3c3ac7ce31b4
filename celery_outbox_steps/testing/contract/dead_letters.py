"""Dead letters are listed, counted, replayed and purged by id, task name, kind and age.

Part of `StoreContract`: the methods of an `OperatorStore` that take `DeadLetters`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from celery_outbox_steps.messages import Dead
from celery_outbox_steps.store import MESSAGE, TASK, DeadLetters
from celery_outbox_steps.testing.contract.backend import LEASE, only, repeat_until

if TYPE_CHECKING:
    from celery_outbox_steps.testing.contract.backend import Backend


class DeadLettersContract:
    """A selection matches the right dead letters, and none is replayed twice."""

    def test_replay_makes_dead_letters_due_with_no_retries(self, backend: Backend) -> None:
        add_dead_letters(backend, task_id="abc", args="[7]", retries=5)
        assert backend.store().replay(DeadLetters()) == 1
        assert backend.dead_letters() == []
        message = only(backend.store().claim(10, LEASE, "me"))
        assert (message.task_id, message.args, message.retries) == ("abc", "[7]", 0)

    def test_replay_takes_the_named_ones(self, backend: Backend) -> None:
        first, second, third = add_dead_letters(backend, 3)
        assert backend.store().replay(DeadLetters([first, third])) == 2
        assert [letter["id"] for letter in backend.dead_letters()] == [second]
        assert backend.store().replay(DeadLetters([])) == 0

    def test_replay_by_task_and_limit(self, backend: Backend) -> None:
        add_dead_letters(backend, 3, task_name="a")
        add_dead_letters(backend, 1, task_name="b")
        assert backend.store().replay(DeadLetters(task_name="a"), 2) == 2
        assert sorted(letter["task_name"] for letter in backend.dead_letters()) == ["a", "b"]

    @pytest.mark.parametrize(
        ("pattern", "fitting"),
        [
            ("shop.*", {"shop.pay_all", "shop.payXall", "shop.a[b]", "shop.50%!"}),
            ("shop.pay_all", {"shop.pay_all"}),
            ("shop.pay?all", {"shop.pay_all", "shop.payXall"}),
            ("*pay_all", {"shop.pay_all", "Shop.pay_all"}),
            ("S*", {"Shop.pay_all"}),
            ("shop.a[b]", {"shop.a[b]"}),
            ("*[b]", {"shop.a[b]"}),
            ("*50%!", {"shop.50%!"}),
            ("shop", set()),
            ("%", set()),
            ("*", {"shop.pay_all", "shop.payXall", "Shop.pay_all", "shop.a[b]", "shop.50%!"}),
        ],
    )
    def test_a_task_name_may_be_a_pattern(
        self, backend: Backend, pattern: str, fitting: set[str]
    ) -> None:
        names = ("shop.pay_all", "shop.payXall", "Shop.pay_all", "shop.a[b]", "shop.50%!")
        for name in names:
            add_dead_letters(backend, task_name=name)
        which = DeadLetters(task_name=pattern)
        assert backend.store().count_dead_letters(which) == len(fitting)
        assert backend.store().replay(which) == len(fitting)
        assert {row["task_name"] for row in backend.rows()} == fitting

    def test_they_are_listed_the_newest_first(self, backend: Backend) -> None:
        (first,) = add_dead_letters(backend, task_id="abc", task_name="shop.pay")
        backend.pass_time(100)
        second = backend.add_failed_task(task_id="def", task_name="shop.mail")
        store = backend.store()
        newest, oldest = store.list_dead_letters(DeadLetters())
        assert (newest.id, newest.kind, newest.task_id) == (second, TASK, "def")
        assert (oldest.id, oldest.kind, oldest.task_id) == (first, MESSAGE, "abc")
        assert (oldest.task_name, oldest.retries, oldest.failure_reason) == ("shop.pay", 1, "no")
        assert oldest.seconds == pytest.approx(100, abs=5)
        assert newest.seconds == pytest.approx(0, abs=5)
        assert datetime.fromisoformat(oldest.dead_at).utcoffset() is not None
        assert [each.id for each in store.list_dead_letters(DeadLetters(), 1)] == [second]
        named = store.list_dead_letters(DeadLetters(task_name="shop.p*"))
        assert [each.id for each in named] == [first]
        assert store.list_dead_letters(DeadLetters(ids=[])) == []

    def test_a_kind_is_selected(self, backend: Backend) -> None:
        (message,) = add_dead_letters(backend)
        task = backend.add_failed_task()
        store = backend.store()
        for kind, wanted in ((MESSAGE, message), (TASK, task)):
            which = DeadLetters(kind=kind)
            assert store.count_dead_letters(which) == 1
            assert [each.id for each in store.list_dead_letters(which)] == [wanted]
        assert store.purge_dead_letters(DeadLetters(kind=MESSAGE)) == 1
        assert store.replay(DeadLetters(kind=TASK)) == 1
        assert backend.dead_letters() == []

    def test_failed_tasks_are_counted_among_the_dead_letters(self, backend: Backend) -> None:
        add_dead_letters(backend, 2)
        backend.add_failed_task()
        stats = backend.store().stats()
        assert (stats.dead_letters, stats.failed_tasks) == (3, 1)
        sample = backend.store().sample()
        assert (sample.dead_letters, sample.failed_tasks) == (3, 1)

    def test_a_failed_task_is_due_when_it_is_replayed(self, backend: Backend) -> None:
        backend.add_failed_task(task_id="abc", args="[7]")
        store = backend.store()
        assert store.replay(DeadLetters()) == 1
        message = only(store.claim(10, LEASE, "me"))
        assert (message.task_id, message.args, message.retries) == ("abc", "[7]", 0)
        store.settle([Dead(message, "no", 1)], "me")
        assert only(store.list_dead_letters(DeadLetters())).kind == MESSAGE

    def test_concurrent_replays_never_replay_twice(self, backend: Backend) -> None:
        add_dead_letters(backend, 60)

        def replay(_: int) -> int:
            store, replayed = backend.store(), 0
            for _turn in repeat_until(lambda: not backend.dead_letters()):
                replayed += store.replay(DeadLetters(), 7)
            return replayed

        with ThreadPoolExecutor(3) as pool:
            assert sum(pool.map(replay, range(3))) == 60
        assert len(backend.rows()) == 60

    def test_replay_takes_a_range_of_time(self, backend: Backend) -> None:
        add_dead_letters(backend, 1, task_name="old")
        backend.pass_time(100)
        add_dead_letters(backend, 1, task_name="middle")
        backend.pass_time(100)
        add_dead_letters(backend, 1, task_name="new")
        assert backend.store().replay(DeadLetters(older_than=50, newer_than=150)) == 1
        assert [row["task_name"] for row in backend.rows()] == ["middle"]

    def test_purge_removes_old_dead_letters_in_chunks(self, backend: Backend) -> None:
        add_dead_letters(backend, 3, task_name="a")
        add_dead_letters(backend, 1, task_name="b")
        backend.pass_time(100)
        add_dead_letters(backend, 1, task_name="a")
        store = backend.store()
        old = DeadLetters(task_name="a", older_than=50)
        assert store.count_dead_letters(old) == 3
        assert [store.purge_dead_letters(old, 2) for _ in range(3)] == [2, 1, 0]
        assert sorted(letter["task_name"] for letter in backend.dead_letters()) == ["a", "b"]


def add_dead_letters(backend: Backend, count: int = 1, **columns: Any) -> list[int]:
    """Add new dead letters. Returns their ids."""
    backend.add(count, **columns)
    store = backend.store()
    store.settle([Dead(m, "no", 1) for m in store.claim(count, LEASE, "me")], "me")
    return [letter["id"] for letter in backend.dead_letters()][-count:]
