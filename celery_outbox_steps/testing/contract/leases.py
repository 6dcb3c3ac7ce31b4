"""Leases: they last, are renewed, expire and are released; rows are adopted, or orphaned.

Part of `StoreContract`: `Store.claim`, `Store.renew` and `Store.release`, seen by several relays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_outbox_steps.messages import Deferred, Published, Retry
from celery_outbox_steps.testing.contract.backend import LEASE, ids_of, only

if TYPE_CHECKING:
    from celery_outbox_steps.testing.contract.backend import Backend


class LeasesContract:
    """A row belongs to one relay until its lease ends; the next relay sees what happened to it."""

    def test_a_leased_row_is_claimed_by_no_other_relay(self, backend: Backend) -> None:
        backend.add()
        assert len(backend.store().claim(10, LEASE, "first")) == 1
        assert backend.store().claim(10, LEASE, "second") == []

    def test_an_expired_lease_is_taken_over(self, backend: Backend) -> None:
        row = only(backend.add())
        backend.store().claim(10, LEASE, "dead relay")
        backend.pass_time(LEASE + 1)
        assert ids_of(backend.store().claim(10, LEASE, "successor")) == [row]

    def test_release_makes_rows_claimable_at_once_with_retries_untouched(
        self, backend: Backend
    ) -> None:
        rows = backend.add(2, retries=1)
        store = backend.store()
        store.claim(10, LEASE, "me")
        assert store.release(rows, "me") == 2
        assert [message.retries for message in backend.store().claim(10, LEASE, "other")] == [1, 1]

    def test_release_gives_back_only_the_relays_own_rows(self, backend: Backend) -> None:
        rows = backend.add(2)
        backend.store().claim(1, LEASE, "other")
        store = backend.store()
        store.claim(1, LEASE, "me")
        assert store.release(rows, "me") == 1
        assert store.release([], "me") == 0

    def test_adopt_takes_the_relays_own_rows_again(self, backend: Backend) -> None:
        rows, store = backend.add(3), backend.store()
        store.claim(2, LEASE, "me")  # and the answer was lost
        assert ids_of(store.claim(10, LEASE, "me", adopt=True)) == rows

    def test_adopt_never_takes_the_rows_of_another_relay(self, backend: Backend) -> None:
        backend.add(2)
        backend.store().claim(10, LEASE, "other")
        assert backend.store().claim(10, LEASE, "me", adopt=True) == []

    def test_without_adopt_the_relays_own_rows_stay_leased(self, backend: Backend) -> None:
        backend.add()
        store = backend.store()
        store.claim(10, LEASE, "me")
        assert store.claim(10, LEASE, "me") == []

    def test_adopt_begins_the_lease_again(self, backend: Backend) -> None:
        backend.add()
        backend.store().claim(10, LEASE, "me")
        backend.pass_time(LEASE - 10)
        assert len(backend.store().claim(10, LEASE, "me", adopt=True)) == 1
        backend.pass_time(LEASE - 10)
        assert backend.store().claim(10, LEASE, "other") == []

    def test_adopt_takes_only_rows_that_are_due(self, backend: Backend) -> None:
        backend.add()
        store = backend.store()
        store.settle([Deferred(only(store.claim(10, LEASE, "me")), "away", 60)], "me")
        assert store.claim(10, LEASE, "me", adopt=True) == []

    def test_a_new_row_has_no_history(self, backend: Backend) -> None:
        backend.add()
        message = only(backend.store().claim(10, LEASE, "me"))
        assert (message.attempted, message.orphaned, message.oversized) == (False, False, False)

    @pytest.mark.parametrize("outcome", [Retry, Deferred])
    def test_a_failed_attempt_is_remembered(
        self, backend: Backend, outcome: type[Retry | Deferred]
    ) -> None:
        backend.add()
        store = backend.store()
        store.settle([outcome(only(store.claim(10, LEASE, "me")), "no", 0)], "me")
        message = only(store.claim(10, LEASE, "me"))
        assert (message.attempted, message.orphaned) == (True, False)

    def test_a_row_of_a_dead_relay_is_orphaned(self, backend: Backend) -> None:
        backend.add()
        backend.store().claim(10, LEASE, "dead relay")
        backend.pass_time(LEASE + 1)
        message = only(backend.store().claim(10, LEASE, "successor"))
        assert (message.attempted, message.orphaned) == (False, True)

    def test_a_released_row_is_not_orphaned(self, backend: Backend) -> None:
        rows = backend.add()
        other = backend.store()
        other.claim(10, LEASE, "other")
        other.release(rows, "other")
        assert only(backend.store().claim(10, LEASE, "me")).orphaned is False

    @pytest.mark.parametrize("adopt", [False, True])
    def test_a_relays_own_row_is_not_orphaned(self, backend: Backend, adopt: bool) -> None:
        backend.add()
        backend.store().claim(10, LEASE, "me")
        backend.pass_time(LEASE + 1)
        assert only(backend.store().claim(10, LEASE, "me", adopt=adopt)).orphaned is False

    def test_a_published_row_is_not_claimed_again(self, backend: Backend) -> None:
        backend.add(2)
        store = backend.store(retention=3600)
        store.settle([Published(only(store.claim(1, LEASE, "me")))], "me")
        assert len(store.claim(10, LEASE, "me", adopt=True)) == 1

    def test_an_orphan_that_is_only_deferred_is_one_for_every_later_relay(
        self, backend: Backend
    ) -> None:
        backend.add()
        backend.store().claim(10, LEASE, "me")
        backend.pass_time(LEASE + 1)
        for relay in ("successor", "successor", "another"):
            store = backend.store()
            message = only(store.claim(10, LEASE, relay, adopt=True))
            assert message.orphaned
            assert store.settle([Deferred(message, "no time", 0)], relay) == 0
        assert store.settle([Published(message)], "successor") == 0
        assert backend.rows() == []

    def test_a_renewed_lease_begins_again(self, backend: Backend) -> None:
        rows, store = backend.add(2), backend.store()
        store.claim(10, LEASE, "me")
        backend.pass_time(LEASE - 10)
        assert sorted(store.renew(rows, LEASE, "me")) == rows
        backend.pass_time(LEASE - 10)
        assert backend.store().claim(10, LEASE, "other") == []
        backend.pass_time(20)
        assert len(backend.store().claim(10, LEASE, "other")) == 2

    def test_an_expired_lease_is_renewed_if_no_other_relay_has_the_row(
        self, backend: Backend
    ) -> None:
        rows, store = backend.add(3), backend.store()
        store.claim(10, LEASE, "me")
        backend.pass_time(LEASE + 1)
        taken = ids_of(backend.store().claim(1, LEASE, "other"))
        assert sorted(store.renew(rows, LEASE, "me")) == [row for row in rows if row not in taken]
        assert backend.store().claim(10, LEASE, "third") == []

    def test_only_rows_that_the_relay_holds_are_renewed(self, backend: Backend) -> None:
        rows, store = backend.add(2), backend.store()
        store.settle([Retry(only(store.claim(1, LEASE, "me")), "no", 0)], "me")
        assert store.renew([*rows, 10**9], LEASE, "me") == []
        assert store.renew([], LEASE, "me") == []
        assert len(backend.store().claim(10, LEASE, "other")) == 2

    @pytest.mark.parametrize("adopt", [False, True])
    def test_without_orphans_the_rows_of_other_relays_are_not_taken_over(
        self, backend: Backend, adopt: bool
    ) -> None:
        rows = backend.add(3)
        for relay in ("other", "me"):
            backend.store().claim(1, LEASE, relay)
        backend.pass_time(LEASE + 1)
        claimed = backend.store().claim(10, LEASE, "me", adopt=adopt, orphans=False)
        assert ids_of(claimed) == rows[1:], "its own, though expired, and the unclaimed one"
        assert ids_of(backend.store().claim(10, LEASE, "third")) == rows[:1]

    def test_without_orphans_leased_rows_are_not_claimed_either(self, backend: Backend) -> None:
        backend.add(2)
        backend.store().claim(1, LEASE, "other")
        store = backend.store()
        store.claim(1, LEASE, "me")
        assert store.claim(10, LEASE, "me", orphans=False) == []

    def test_without_orphans_one_that_was_deferred_is_claimed(self, backend: Backend) -> None:
        """Its last relay has given it back: there is nothing that it could still settle."""
        backend.add()
        backend.store().claim(10, LEASE, "dead relay")
        backend.pass_time(LEASE + 1)
        other = backend.store()
        other.settle([Deferred(only(other.claim(10, LEASE, "other")), "no time", 0)], "other")
        assert only(backend.store().claim(10, LEASE, "me", orphans=False)).orphaned

    def test_a_release_of_more_rows_than_a_statement_can_name(self, backend: Backend) -> None:
        ids = range(1, 300_000)  # more than a statement of SQLite may have parameters
        assert backend.store().release(ids, "me") == 0
