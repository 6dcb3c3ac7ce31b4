"""What the Store promises, one test for each promise, on every store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import pytest

from celery_outbox_steps.envelope import SUPPORTED_VERSIONS
from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.messages import Dead, Deferred, Published, Retry
from celery_outbox_steps.store import DeadLetters
from tests.helpers import wait_for

LEASE = 300.0
OUTCOMES = [
    pytest.param(Published, id="published"),
    pytest.param(lambda message: Retry(message, "e", 60), id="retry"),
    pytest.param(lambda message: Deferred(message, "e", 60), id="deferred"),
    pytest.param(lambda message: Dead(message, "e", 1), id="dead"),
]


def ids_of(messages):
    return [message.id for message in messages]


def only(items):
    (item,) = items
    return item


class TestClaim:
    def test_hands_out_what_was_stored(self, backend):
        backend.add(
            task_id="abc",
            task_name="shop.mail",
            args='["ä", 1e22]',
            kwargs='{"b": 1, "a": 2}',
            options='{"x": "\\u0000"}',
            payload=b"\x00\xff",
            retries=2,
            sentry_trace_id="t",
            sentry_baggage="b",
            structlog_context="{}",
        )
        message = only(backend.store().claim(10, LEASE, "me"))
        assert message[1:12] == (
            "abc",
            "shop.mail",
            '["ä", 1e22]',
            '{"b": 1, "a": 2}',
            '{"x": "\\u0000"}',
            b"\x00\xff",
            2,
            1,
            "t",
            "b",
            "{}",
        )
        assert type(message.payload) is bytes
        assert 0 <= message.waited < 60

    def test_says_how_long_a_row_waited(self, backend):
        backend.add()
        backend.pass_time(100)
        assert only(backend.store().claim(10, LEASE, "me")).waited == pytest.approx(100, abs=20)

    def test_takes_at_most_the_limit(self, backend):
        backend.add(5)
        store = backend.store()
        assert len(store.claim(3, LEASE, "me")) == 3
        assert len(store.claim(3, LEASE, "me")) == 2
        assert store.claim(3, LEASE, "me") == []

    def test_goes_by_due_time(self, backend):
        late, early, middle = (only(backend.add(due_in=due)) for due in (-10, -30, -20))
        assert ids_of(backend.store().claim(10, LEASE, "me")) == [early, middle, late]

    def test_leaves_rows_that_are_not_due_yet(self, backend):
        backend.add(due_in=60)
        assert backend.store().claim(10, LEASE, "me") == []
        backend.pass_time(61)
        assert len(backend.store().claim(10, LEASE, "me")) == 1

    def test_leaves_rows_of_an_unknown_schema_version_alone(self, backend):
        known = only(backend.add(schema_version=SUPPORTED_VERSIONS[-1]))
        unknown = only(backend.add(schema_version=SUPPORTED_VERSIONS[-1] + 1))
        assert ids_of(backend.store().claim(10, LEASE, "me")) == [known]
        assert [row["claimed_by"] for row in backend.rows() if row["id"] == unknown] == [None]

    def test_a_leased_row_is_nobody_elses(self, backend):
        backend.add()
        assert len(backend.store().claim(10, LEASE, "first")) == 1
        assert backend.store().claim(10, LEASE, "second") == []

    def test_an_expired_lease_is_taken_over(self, backend):
        row = only(backend.add())
        backend.store().claim(10, LEASE, "dead relay")
        backend.pass_time(LEASE + 1)
        assert ids_of(backend.store().claim(10, LEASE, "heir")) == [row]

    def test_a_row_below_the_last_claim_is_found_all_the_same(self, backend):
        store = backend.store()
        backend.add()
        store.settle([Published(only(store.claim(10, LEASE, "me")))], "me")
        late = only(backend.add(due_in=-3600))
        assert ids_of(wait_for(lambda: store.claim(10, LEASE, "me"))) == [late]

    def test_concurrent_claims_of_threads_never_overlap_and_miss_nothing(self, backend):
        rows = backend.add(400)

        def relay(number):
            store = backend.store()
            claimed = []
            while any(row["claimed_by"] is None for row in backend.rows()):
                claimed += ids_of(store.claim(17, LEASE, f"relay {number}"))
            return claimed

        with ThreadPoolExecutor(4) as pool:
            claimed = [row for part in pool.map(relay, range(4)) for row in part]
        assert sorted(claimed) == rows


class TestSettle:
    def test_published_rows_are_deleted(self, backend):
        backend.add(3)
        store = backend.store()
        claimed = store.claim(2, LEASE, "me")
        assert store.settle([Published(message) for message in claimed], "me") == 0
        assert len(backend.rows()) == 1

    def test_retention_keeps_published_rows(self, backend):
        backend.add()
        store = backend.store(retention=3600)
        store.settle([Published(only(store.claim(10, LEASE, "me")))], "me")
        row = only(backend.rows())
        assert backend.seconds_until(row["published_at"]) == pytest.approx(0, abs=20)
        assert (row["due_at"], row["claimed_by"], row["claimed_until"]) == (None, None, None)
        backend.pass_time(LEASE + 1)
        assert backend.store().claim(10, LEASE, "me") == []

    def test_retry_spends_one_and_waits(self, backend):
        backend.add(retries=1)
        store = backend.store()
        store.settle([Retry(only(store.claim(10, LEASE, "me")), "Nacked: no", 90.0)], "me")
        row = only(backend.rows())
        assert (row["retries"], row["last_error"], row["claimed_by"]) == (2, "Nacked: no", None)
        assert backend.seconds_until(row["due_at"]) == pytest.approx(90, abs=20)
        assert backend.seconds_until(row["updated_at"]) == pytest.approx(0, abs=20)
        assert row["claimed_until"] is None

    def test_deferred_spends_nothing_and_waits(self, backend):
        backend.add(2, retries=1)
        store = backend.store()
        claimed = store.claim(10, LEASE, "me")
        store.settle([Deferred(message, "broker away", 45.5) for message in claimed], "me")
        for row in backend.rows():
            assert (row["retries"], row["last_error"]) == (1, "broker away")
            assert (row["claimed_by"], row["claimed_until"]) == (None, None)
            assert backend.seconds_until(row["due_at"]) == pytest.approx(45.5, abs=20)

    def test_dead_letters_keep_content_and_the_real_error(self, backend):
        backend.add(
            task_id="abc",
            task_name="shop.mail",
            args="[1]",
            kwargs='{"z": 1}',
            options="{}",
            payload=b"\x80",
            retries=5,
            structlog_context='{"user": 7}',
        )
        before = only(backend.rows())
        store = backend.store()
        error = "EncodeError: lone \ud800, 🙈"
        store.settle([Dead(only(store.claim(10, LEASE, "me")), error, 6)], "me")
        assert backend.rows() == []
        letter = only(backend.dead_letters())
        assert letter["failure_reason"].startswith("EncodeError: lone ")
        content = (
            "task_id",
            "task_name",
            "args",
            "kwargs",
            "options",
            "created_at",
            "schema_version",
            "structlog_context",
        )
        assert [letter[name] for name in content] == [before[name] for name in content]
        assert bytes(letter["payload"]) == b"\x80"
        assert letter["retries"] == 6

    def test_an_error_text_with_nul_can_be_stored(self, backend):
        backend.add(2)
        store = backend.store()
        first, second = store.claim(10, LEASE, "me")
        assert store.settle([Retry(first, "a\x00b", 1), Dead(second, "a\x00b", 1)], "me") == 0
        assert "a" in only(backend.rows())["last_error"]

    def test_a_mixed_batch_is_settled_at_once(self, backend):
        backend.add(4)
        store = backend.store()
        one, two, three, four = store.claim(10, LEASE, "me")
        outcomes = [
            Published(one),
            Retry(two, "e", 10),
            Deferred(three, "o", 10),
            Dead(four, "d", 1),
        ]
        assert store.settle(outcomes, "me") == 0
        assert [row["id"] for row in backend.rows()] == [two.id, three.id]
        assert len(backend.dead_letters()) == 1

    @pytest.mark.parametrize("outcome", OUTCOMES)
    def test_a_late_settle_of_the_old_holder_changes_nothing_and_is_counted(self, backend, outcome):
        backend.add(2)
        slow = backend.store()
        claimed = slow.claim(10, LEASE, "slow")
        backend.pass_time(LEASE + 1)
        assert len(backend.store().claim(1, LEASE, "heir")) == 1
        before = backend.rows()[0]
        assert slow.settle([outcome(message) for message in claimed], "slow") == 1
        assert next(row for row in backend.rows() if row["id"] == before["id"]) == before
        assert len(backend.dead_letters()) <= 1

    def test_a_late_settle_succeeds_while_nobody_took_over(self, backend):
        backend.add()
        store = backend.store()
        claimed = store.claim(10, LEASE, "slow")
        backend.pass_time(LEASE + 1)
        assert store.settle([Published(only(claimed))], "slow") == 0
        assert backend.rows() == []

    @pytest.mark.parametrize("outcome", OUTCOMES)
    @pytest.mark.parametrize("retention", [None, 3600])
    def test_repeating_a_settle_is_safe(self, backend, outcome, retention):
        backend.add()
        store = backend.store(retention=retention)
        outcomes = [outcome(only(store.claim(10, LEASE, "me")))]
        assert store.settle(outcomes, "me") == 0
        rows, letters = backend.rows(), backend.dead_letters()
        assert store.settle(outcomes, "me") == 1
        assert (backend.rows(), backend.dead_letters()) == (rows, letters)

    def test_relays_at_work_side_by_side_do_not_disturb_each_other(self, backend):
        backend.add(240)

        def relay(number):
            store, outcomes = backend.store(), cycle(outcome.values[0] for outcome in OUTCOMES)
            fenced = 0
            while any(row["retries"] == 0 and not row["last_error"] for row in backend.rows()):
                claimed = store.claim(6, LEASE, f"relay {number}")
                fenced += store.settle([next(outcomes)(m) for m in claimed], f"relay {number}")
            return fenced

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(relay, range(4))) == [0, 0, 0, 0]
        letters, rows = backend.dead_letters(), backend.rows()
        assert all(row["claimed_by"] is None for row in rows)
        assert 1 <= len(letters) < 240
        assert 1 <= len(rows) < 240 - len(letters)

    def test_nothing_to_settle(self, backend):
        assert backend.store().settle([], "me") == 0


class TestLease:
    def test_release_makes_rows_claimable_at_once_with_retries_untouched(self, backend):
        rows = backend.add(2, retries=1)
        store = backend.store()
        store.claim(10, LEASE, "me")
        assert store.release(rows, "me") == 2
        assert [message.retries for message in backend.store().claim(10, LEASE, "other")] == [1, 1]

    def test_release_gives_back_only_what_is_ours(self, backend):
        rows = backend.add(2)
        backend.store().claim(1, LEASE, "other")
        store = backend.store()
        store.claim(1, LEASE, "me")
        assert store.release(rows, "me") == 1
        assert store.release([], "me") == 0


class TestReplayAndPurge:
    def bury(self, backend, count=1, **columns):
        backend.add(count, **columns)
        store = backend.store()
        store.settle([Dead(m, "no", 1) for m in store.claim(count, LEASE, "me")], "me")
        return [letter["id"] for letter in backend.dead_letters()][-count:]

    def test_replay_makes_dead_letters_due_with_no_retries(self, backend):
        self.bury(backend, task_id="abc", args="[7]", retries=5)
        assert backend.store().replay(DeadLetters()) == 1
        assert backend.dead_letters() == []
        message = only(backend.store().claim(10, LEASE, "me"))
        assert (message.task_id, message.args, message.retries) == ("abc", "[7]", 0)

    def test_replay_takes_the_named_ones(self, backend):
        first, second, third = self.bury(backend, 3)
        assert backend.store().replay(DeadLetters([first, third])) == 2
        assert [letter["id"] for letter in backend.dead_letters()] == [second]
        assert backend.store().replay(DeadLetters([])) == 0

    def test_replay_by_task_and_limit(self, backend):
        self.bury(backend, 3, task_name="a")
        self.bury(backend, 1, task_name="b")
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
    def test_a_task_name_may_be_a_pattern(self, backend, pattern, fitting):
        names = ("shop.pay_all", "shop.payXall", "Shop.pay_all", "shop.a[b]", "shop.50%!")
        for name in names:
            self.bury(backend, task_name=name)
        which = DeadLetters(task_name=pattern)
        assert backend.store().count_dead_letters(which) == len(fitting)
        assert backend.store().replay(which) == len(fitting)
        assert {row["task_name"] for row in backend.rows()} == fitting

    def test_concurrent_replays_never_replay_twice(self, backend):
        self.bury(backend, 60)

        def replay(_):
            store, replayed = backend.store(), 0
            while backend.dead_letters():
                replayed += store.replay(DeadLetters(), 7)
            return replayed

        with ThreadPoolExecutor(3) as pool:
            assert sum(pool.map(replay, range(3))) == 60
        assert len(backend.rows()) == 60

    def test_replay_takes_a_range_of_time(self, backend):
        self.bury(backend, 1, task_name="old")
        backend.pass_time(100)
        self.bury(backend, 1, task_name="middle")
        backend.pass_time(100)
        self.bury(backend, 1, task_name="new")
        assert backend.store().replay(DeadLetters(older_than=50, newer_than=150)) == 1
        assert [row["task_name"] for row in backend.rows()] == ["middle"]

    def test_purge_removes_old_published_rows_in_chunks(self, backend):
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

    def test_purge_removes_old_dead_letters_in_chunks(self, backend):
        self.bury(backend, 3, task_name="a")
        self.bury(backend, 1, task_name="b")
        backend.pass_time(100)
        self.bury(backend, 1, task_name="a")
        store = backend.store()
        old = DeadLetters(task_name="a", older_than=50)
        assert store.count_dead_letters(old) == 3
        assert [store.purge_dead_letters(old, 2) for _ in range(3)] == [2, 1, 0]
        assert sorted(letter["task_name"] for letter in backend.dead_letters()) == ["a", "b"]


class TestSize:
    def test_a_batch_larger_than_any_limit_of_the_database_is_settled(self, backend):
        ids = range(1, 300_000)  # more than a statement of SQLite may have parameters
        assert backend.store().release(ids, "me") == 0


class TestNumbers:
    def test_an_empty_outbox(self, backend):
        sample = backend.store().sample()
        assert (sample.depth, sample.dead_letters, sample.oldest_pending_seconds) == (0, 0, 0.0)
        stats = backend.store().stats()
        assert (stats.depth, stats.in_flight, stats.failing, stats.published) == (0, 0, 0, 0)
        assert stats.capped is False

    def test_stats_and_sample_count_what_is_there(self, backend):
        store = backend.store(retention=3600)
        backend.add(4, task_name="shop.mail")
        one, two, three = store.claim(3, LEASE, "me")
        store.settle([Published(one), Retry(two, "boom", 60), Dead(three, "no", 1)], "me")
        backend.pass_time(50)
        assert len(backend.store().claim(1, LEASE, "other")) == 1
        stats = store.stats()
        assert (stats.depth, stats.in_flight, stats.failing) == (2, 1, 1)
        assert (stats.dead_letters, stats.published) == (1, 1)
        relay = only(stats.relays)
        assert (relay["relay"], relay["rows"]) == ("other", 1)
        assert relay["seconds_left"] == pytest.approx(LEASE, abs=20)
        failing = {"task_name": "shop.mail", "rows": 1, "last_error": "boom"}
        assert stats.top_failing == (failing,)
        assert store.stats(top=0).top_failing == ()
        sample = store.sample()
        assert (sample.depth, sample.dead_letters) == (2, 1)
        assert sample.oldest_pending_seconds == pytest.approx(50, abs=20)


class TestWait:
    def test_ends_by_itself(self, backend):
        assert backend.store().wait(0.01) is False

    def test_a_wake_from_another_thread_ends_it(self, backend):
        store = backend.store()
        store.claim(1, LEASE, "me")
        answers = []
        thread = threading.Thread(target=lambda: answers.append(store.wait(60)))
        thread.start()
        store.wake()
        thread.join(20)
        assert answers == [True]

    def test_many_wakes_count_as_one(self, backend):
        store = backend.store()
        for _ in range(100_000):
            store.wake()
        assert store.wait(10) is True
        assert store.wait(0.01) is False


class TestConnection:
    def test_a_store_can_be_used_again_after_close(self, backend):
        backend.add()
        store = backend.store()
        store.check()
        store.close()
        store.close()
        assert len(store.claim(1, LEASE, "me")) == 1

    def test_says_which_drivers_block_an_event_loop(self, backend):
        blocking = {"psycopg2", "mysqlclient"}
        assert backend.store().blocks_event_loop is (backend.name in blocking)

    def test_check_names_the_fix_for_missing_tables(self, database, tmp_path):
        from tests.contract import backends

        with (
            backends.opened(database.name, tmp_path, migrated=False) as empty,
            pytest.raises(StoreError, match=r"manage\.py migrate"),
        ):
            empty.store().check()
