"""The effect of each outcome on a row, and which relay may still write it.

Part of `StoreContract`: `Store.settle` and its fence.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import TYPE_CHECKING

import pytest

from celery_outbox_steps.messages import Dead, Deferred, Published, Retry
from celery_outbox_steps.testing.contract.backend import (
    LEASE,
    OUTCOMES,
    each_outcome,
    only,
    repeat_until,
)

if TYPE_CHECKING:
    from celery_outbox_steps.messages import ClaimedMessage, Outcome
    from celery_outbox_steps.store import Store
    from celery_outbox_steps.testing.contract.backend import Backend, Settles


class SettlingContract:
    """Every outcome leaves the row as promised; a relay that lost the row changes nothing."""

    def test_published_rows_are_deleted(self, backend: Backend) -> None:
        backend.add(3)
        store = backend.store()
        claimed = store.claim(2, LEASE, "me")
        assert store.settle([Published(message) for message in claimed], "me") == 0
        assert len(backend.rows()) == 1

    def test_retention_keeps_published_rows(self, backend: Backend) -> None:
        backend.add()
        store = backend.store(retention=3600)
        store.settle([Published(only(store.claim(10, LEASE, "me")))], "me")
        row = only(backend.rows())
        assert backend.seconds_until(row["published_at"]) == pytest.approx(0, abs=20)
        assert (row["due_at"], row["claimed_by"], row["claimed_until"]) == (None, None, None)
        backend.pass_time(LEASE + 1)
        assert backend.store().claim(10, LEASE, "me") == []

    def test_retry_spends_one_and_waits(self, backend: Backend) -> None:
        backend.add(retries=1)
        store = backend.store()
        store.settle([Retry(only(store.claim(10, LEASE, "me")), "Nacked: no", 90.0)], "me")
        row = only(backend.rows())
        assert (row["retries"], row["last_error"], row["claimed_by"]) == (2, "Nacked: no", None)
        assert backend.seconds_until(row["due_at"]) == pytest.approx(90, abs=20)
        assert backend.seconds_until(row["updated_at"]) == pytest.approx(0, abs=20)
        assert row["claimed_until"] is None

    def test_deferred_spends_nothing_and_waits(self, backend: Backend) -> None:
        backend.add(2, retries=1)
        store = backend.store()
        claimed = store.claim(10, LEASE, "me")
        store.settle([Deferred(message, "broker away", 45.5) for message in claimed], "me")
        for row in backend.rows():
            assert (row["retries"], row["last_error"]) == (1, "broker away")
            assert (row["claimed_by"], row["claimed_until"]) == (None, None)
            assert backend.seconds_until(row["due_at"]) == pytest.approx(45.5, abs=20)

    def test_dead_letters_keep_content_and_the_real_error(self, backend: Backend) -> None:
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

    def test_an_error_text_with_nul_can_be_stored(self, backend: Backend) -> None:
        backend.add(2)
        store = backend.store()
        first, second = store.claim(10, LEASE, "me")
        assert store.settle([Retry(first, "a\x00b", 1), Dead(second, "a\x00b", 1)], "me") == 0
        assert "a" in only(backend.rows())["last_error"]

    def test_a_mixed_batch_is_settled_at_once(self, backend: Backend) -> None:
        backend.add(4)
        store = backend.store()
        one, two, three, four = store.claim(10, LEASE, "me")
        outcomes: list[Outcome] = [
            Published(one),
            Retry(two, "e", 10),
            Deferred(three, "o", 10),
            Dead(four, "d", 1),
        ]
        assert store.settle(outcomes, "me") == 0
        assert [row["id"] for row in backend.rows()] == [two.id, three.id]
        assert len(backend.dead_letters()) == 1

    @each_outcome
    def test_a_late_settle_of_the_old_holder_changes_nothing_and_is_counted(
        self, backend: Backend, outcome: Settles
    ) -> None:
        backend.add(2)
        slow = backend.store()
        claimed = slow.claim(10, LEASE, "slow")
        backend.pass_time(LEASE + 1)
        assert len(backend.store().claim(1, LEASE, "successor")) == 1
        before = backend.rows()[0]
        assert slow.settle([outcome(message) for message in claimed], "slow") == 1
        assert next(row for row in backend.rows() if row["id"] == before["id"]) == before
        assert len(backend.dead_letters()) <= 1

    def test_a_late_settle_succeeds_until_another_relay_claims_the_row(
        self, backend: Backend
    ) -> None:
        backend.add()
        store = backend.store()
        claimed = store.claim(10, LEASE, "slow")
        backend.pass_time(LEASE + 1)
        assert store.settle([Published(only(claimed))], "slow") == 0
        assert backend.rows() == []

    @each_outcome
    @pytest.mark.parametrize("retention", [None, 3600])
    def test_repeating_a_settle_is_safe(
        self, backend: Backend, outcome: Settles, retention: float | None
    ) -> None:
        backend.add()
        store = backend.store(retention=retention)
        outcomes = [outcome(only(store.claim(10, LEASE, "me")))]
        assert store.settle(outcomes, "me") == 0
        rows, letters = backend.rows(), backend.dead_letters()
        assert store.settle(outcomes, "me") == 1
        assert (backend.rows(), backend.dead_letters()) == (rows, letters)

    def test_relays_at_work_side_by_side_do_not_disturb_each_other(self, backend: Backend) -> None:
        backend.add(240)

        def relay(number: int) -> int:
            store, outcomes = backend.store(), cycle(OUTCOMES.values())
            fenced = 0
            for _ in repeat_until(lambda: all(row["last_error"] for row in backend.rows())):
                claimed = store.claim(6, LEASE, f"relay {number}")
                fenced += store.settle([next(outcomes)(m) for m in claimed], f"relay {number}")
            return fenced

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(relay, range(4))) == [0, 0, 0, 0]
        letters, rows = backend.dead_letters(), backend.rows()
        assert all(row["claimed_by"] is None for row in rows)
        assert 1 <= len(letters) < 240
        assert 1 <= len(rows) < 240 - len(letters)

    def test_nothing_to_settle(self, backend: Backend) -> None:
        assert backend.store().settle([], "me") == 0

    @pytest.mark.parametrize("retention", [None, 3600])
    def test_a_published_row_is_settled_even_where_its_claim_was_forgotten(
        self, backend: Backend, retention: float | None
    ) -> None:
        store, message = claim_and_lose(backend, retention)
        assert store.settle([Published(message)], "me") == 0
        assert backend.store().claim(10, LEASE, "successor") == []
        assert store.stats().in_outbox == 0

    @pytest.mark.parametrize("retention", [None, 3600])
    def test_a_published_row_is_fenced_off_while_another_relay_holds_it(
        self, backend: Backend, retention: float | None
    ) -> None:
        store, message = claim_and_lose(backend, retention)
        backend.store().claim(10, LEASE, "successor")
        before = backend.rows()
        assert store.settle([Published(message)], "me") == 1
        assert backend.rows() == before

    @pytest.mark.parametrize("retention", [None, 3600])
    @pytest.mark.parametrize("kind", ["retry", "deferred", "dead"])
    def test_every_other_outcome_needs_the_claim(
        self, backend: Backend, retention: float | None, kind: str
    ) -> None:
        store, message = claim_and_lose(backend, retention)
        before = backend.rows()
        assert store.settle([OUTCOMES[kind](message)], "me") == 1
        assert (backend.rows(), backend.dead_letters()) == (before, [])


def claim_and_lose(backend: Backend, retention: float | None) -> tuple[Store, ClaimedMessage]:
    """A message whose claim is gone: the database crashed, or the row was released."""
    backend.add()
    store = backend.store(retention=retention)
    message = only(store.claim(10, LEASE, "me"))
    store.release([message.id], "me")
    return store, message
