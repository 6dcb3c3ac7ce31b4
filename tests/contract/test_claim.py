"""How much a claim takes, when a relay gets its own rows again, and what a row's history is."""

from __future__ import annotations

import pytest

from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.messages import Deferred, Published, Retry
from tests.contract.test_store import LEASE, ids_of, only

KB = 1024


def text(size):
    """A JSON string of exactly so many bytes."""
    return f'"{"x" * (size - 2)}"'


def add(backend, *sizes):
    """Rows whose contents take so many bytes, in their order of due time."""
    return [
        only(backend.add(due_in=number - 100, args=text(size - 4)))
        for number, size in enumerate(sizes)
    ]


def taken(backend):
    return [row["id"] for row in backend.rows() if row["claimed_by"]]


class TestBytes:
    def test_a_claim_takes_what_fits_together(self, backend):
        rows = add(backend, KB, KB, KB, KB)
        claimed = backend.store().claim(10, LEASE, "me", max_bytes=3 * KB)
        assert ids_of(claimed) == rows[:3]
        assert [message.args for message in claimed] == [text(KB - 4)] * 3
        assert taken(backend) == rows[:3]

    def test_without_a_bound_size_does_not_matter(self, backend):
        rows = add(backend, 500 * KB, 500 * KB, KB)
        claimed = backend.store().claim(10, LEASE, "me")
        assert ids_of(claimed) == rows
        assert [len(message.args) for message in claimed] == [500 * KB - 4, 500 * KB - 4, KB - 4]
        assert not any(message.oversized for message in claimed)

    @pytest.mark.parametrize("column", ["args", "kwargs", "options", "payload"])
    def test_all_contents_count(self, backend, column):
        value = b"x" * KB if column == "payload" else text(KB)
        backend.add(2, **{column: value})
        first = only(backend.store().claim(10, LEASE, "me", max_bytes=2 * KB))
        assert getattr(first, column) == value

    def test_rows_larger_than_their_share_come_with_their_contents(self, backend):
        add(backend, 10, 5 * KB, 10, 2 * KB, KB)
        claimed = backend.store().claim(10, LEASE, "me", max_bytes=7 * KB + 20)
        assert [len(message.args) + 4 for message in claimed] == [10, 5 * KB, 10, 2 * KB]
        assert [message.kwargs for message in claimed] == ["{}"] * 4

    def test_the_rest_follows_in_the_next_claim(self, backend):
        rows, store = add(backend, KB, KB, 3 * KB, KB, KB), backend.store()
        claims = [ids_of(store.claim(10, LEASE, "me", max_bytes=3 * KB)) for _ in range(4)]
        assert claims == [rows[:2], rows[2:3], rows[3:], []]

    def test_a_row_that_never_fits_comes_alone_and_without_its_contents(self, backend):
        rows = add(backend, 5 * KB, 10)
        message = only(backend.store().claim(10, LEASE, "me", max_bytes=KB))
        assert (message.id, message.oversized) == (rows[0], True)
        assert message[3:7] == ("", "", "", None)
        assert taken(backend) == rows[:1]

    def test_a_row_that_never_fits_waits_until_it_is_the_first(self, backend):
        rows, store = add(backend, 10, 5 * KB, 10), backend.store()
        claims = [ids_of(store.claim(10, LEASE, "me", max_bytes=KB)) for _ in range(3)]
        assert claims == [rows[:1], rows[1:2], rows[2:]]

    def test_a_payload_that_never_fits_is_not_brought(self, backend):
        backend.add(payload=b"x" * KB)
        message = only(backend.store().claim(10, LEASE, "me", max_bytes=100))
        assert (message.oversized, message.payload) == (True, None)


class TestAdopt:
    def test_a_relay_takes_its_own_rows_again(self, backend):
        rows, store = backend.add(3), backend.store()
        store.claim(2, LEASE, "me")  # and the answer was lost
        assert ids_of(store.claim(10, LEASE, "me", adopt=True)) == rows

    def test_never_those_of_another_relay(self, backend):
        backend.add(2)
        backend.store().claim(10, LEASE, "other")
        assert backend.store().claim(10, LEASE, "me", adopt=True) == []

    def test_without_it_the_own_rows_stay_leased(self, backend):
        backend.add()
        store = backend.store()
        store.claim(10, LEASE, "me")
        assert store.claim(10, LEASE, "me") == []

    def test_the_lease_begins_again(self, backend):
        backend.add()
        backend.store().claim(10, LEASE, "me")
        backend.pass_time(LEASE - 10)
        assert len(backend.store().claim(10, LEASE, "me", adopt=True)) == 1
        backend.pass_time(LEASE - 10)
        assert backend.store().claim(10, LEASE, "other") == []

    def test_only_rows_that_are_due(self, backend):
        backend.add()
        store = backend.store()
        store.settle([Deferred(only(store.claim(10, LEASE, "me")), "away", 60)], "me")
        assert store.claim(10, LEASE, "me", adopt=True) == []

    def test_after_a_failed_claim_nothing_is_hidden(self, database):
        """Wherever the failed one left off: a row far below the last one is found at once."""
        store = database.store()
        database.add(2)
        store.claim(1, LEASE, "me")
        late = only(database.add(due_in=-3600))
        break_connection(store)
        with pytest.raises(StoreError):
            store.claim(10, LEASE, "me")
        assert ids_of(store.claim(10, LEASE, "me"))[0] == late


class TestHistory:
    def test_a_new_row_has_none(self, backend):
        backend.add()
        message = only(backend.store().claim(10, LEASE, "me"))
        assert (message.attempted, message.orphaned, message.oversized) == (False, False, False)

    @pytest.mark.parametrize("outcome", [Retry, Deferred])
    def test_a_failed_attempt_is_remembered(self, backend, outcome):
        backend.add()
        store = backend.store()
        store.settle([outcome(only(store.claim(10, LEASE, "me")), "no", 0)], "me")
        message = only(store.claim(10, LEASE, "me"))
        assert (message.attempted, message.orphaned) == (True, False)

    def test_a_row_of_a_dead_relay_is_orphaned(self, backend):
        backend.add()
        backend.store().claim(10, LEASE, "dead relay")
        backend.pass_time(LEASE + 1)
        message = only(backend.store().claim(10, LEASE, "heir"))
        assert (message.attempted, message.orphaned) == (False, True)

    def test_a_row_that_was_given_back_is_not(self, backend):
        rows = backend.add()
        other = backend.store()
        other.claim(10, LEASE, "other")
        other.release(rows, "other")
        assert only(backend.store().claim(10, LEASE, "me")).orphaned is False

    @pytest.mark.parametrize("adopt", [False, True])
    def test_ones_own_row_is_not(self, backend, adopt):
        backend.add()
        backend.store().claim(10, LEASE, "me")
        backend.pass_time(LEASE + 1)
        assert only(backend.store().claim(10, LEASE, "me", adopt=adopt)).orphaned is False

    def test_a_published_row_has_no_more_history(self, backend):
        backend.add(2)
        store = backend.store(retention=3600)
        store.settle([Published(only(store.claim(1, LEASE, "me")))], "me")
        assert len(store.claim(10, LEASE, "me", adopt=True)) == 1


def break_connection(store):
    """Close the driver's connection behind the store's back."""
    store._session.raw.close()
