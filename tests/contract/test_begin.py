"""Attempts are counted once, whether they were begun or not, and what the broker has is settled."""

from __future__ import annotations

import pytest

from celery_outbox_steps.messages import Dead, Deferred, Published, Retry
from celery_outbox_steps.store import INTERRUPTED
from tests.contract.test_store import LEASE, only


def claim_one(backend, store, relay="me", **columns):
    backend.add(**columns)
    return only(store.claim(10, LEASE, relay, max_bytes=1000))


class TestBegin:
    def test_the_row_remembers_an_attempt_before_it_is_made(self, backend):
        store = backend.store()
        store.begin_attempt(claim_one(backend, store, retries=2), "me")
        row = only(backend.rows())
        assert (row["retries"], row["last_error"], row["claimed_by"]) == (3, INTERRUPTED, "me")
        assert backend.seconds_until(row["updated_at"]) == pytest.approx(0, abs=20)

    def test_the_heir_of_a_dead_relay_sees_the_attempt(self, backend):
        store = backend.store()
        store.begin_attempt(claim_one(backend, store), "me")
        backend.pass_time(LEASE + 1)
        message = only(backend.store().claim(10, LEASE, "heir"))
        assert (message.retries, message.attempted, message.orphaned) == (1, True, True)

    def test_an_orphan_that_is_only_deferred_is_one_for_every_later_relay(self, backend):
        store = backend.store()
        claim_one(backend, store)
        backend.pass_time(LEASE + 1)
        for relay in ("heir", "heir", "another"):
            store = backend.store()
            message = only(store.claim(10, LEASE, relay, adopt=True))
            assert message.orphaned
            assert store.settle([Deferred(message, "no time", 0)], relay) == 0
        assert store.settle([Published(message)], "heir") == 0
        assert backend.rows() == []

    def test_the_message_is_as_the_relay_knew_it(self, backend):
        store = backend.store()
        message = claim_one(backend, store, args="[1]", payload=b"x", retries=2)
        assert store.begin_attempt(message, "me") == message

    def test_it_brings_the_contents_of_an_oversized_row(self, backend):
        store = backend.store()
        contents = {"args": "[1]", "kwargs": '{"a": 1}', "options": "{}", "payload": b"x" * 2000}
        message = claim_one(backend, store, **contents)
        assert message.oversized
        assert store.begin_attempt(message, "me") == message._replace(**contents)
        assert type(store.begin_attempt(message, "me").payload) is bytes

    def test_begun_twice_is_begun_once(self, backend):
        store = backend.store()
        message = claim_one(backend, store)
        assert store.begin_attempt(message, "me") == store.begin_attempt(message, "me")
        assert only(backend.rows())["retries"] == 1

    def test_a_row_that_is_not_ours_any_more_is_left_alone(self, backend):
        store = backend.store()
        message = claim_one(backend, store, "slow")
        backend.pass_time(LEASE + 1)
        backend.store().claim(10, LEASE, "heir")
        before = backend.rows()
        assert store.begin_attempt(message, "slow") is None
        assert backend.rows() == before

    def test_a_row_that_is_gone_is_not_begun(self, backend):
        store = backend.store()
        message = claim_one(backend, store)
        store.settle([Published(message)], "me")
        assert store.begin_attempt(message, "me") is None


class TestAttempts:
    @pytest.mark.parametrize("begun", [False, True])
    def test_a_retry_counts_once(self, backend, begun):
        store = backend.store()
        message = claim_one(backend, store, retries=1)
        if begun:
            store.begin_attempt(message, "me")
        store.settle([Retry(message, "no", 0)], "me")
        row = only(backend.rows())
        assert (row["retries"], row["last_error"]) == (2, "no")

    @pytest.mark.parametrize("begun", [False, True])
    def test_an_outage_counts_nothing(self, backend, begun):
        store = backend.store()
        message = claim_one(backend, store, retries=1)
        if begun:
            store.begin_attempt(message, "me")
        store.settle([Deferred(message, "away", 0)], "me")
        assert only(backend.rows())["retries"] == 1

    @pytest.mark.parametrize("begun", [False, True])
    def test_a_dead_letter_shows_all_its_attempts(self, backend, begun):
        store = backend.store()
        message = claim_one(backend, store, retries=2)
        if begun:
            store.begin_attempt(message, "me")
        store.settle([Dead(message, "no", 3)], "me")
        assert only(backend.dead_letters())["retries"] == 3

    @pytest.mark.parametrize("begun", [False, True])
    def test_a_kept_row_shows_its_failed_attempts_and_no_error(self, backend, begun):
        store = backend.store(retention=3600)
        for retries in (0, 2):
            message = claim_one(backend, store, retries=retries)
            if begun:
                store.begin_attempt(message, "me")
            store.settle([Published(message)], "me")
        assert [(row["retries"], row["last_error"]) for row in backend.rows()] == [
            (0, None), (2, None),
        ]  # fmt: skip

    def test_rows_with_different_attempts_are_settled_each_with_its_own(self, backend):
        first, second = only(backend.add(retries=4)), only(backend.add(retries=1))
        store = backend.store()
        store.settle([Retry(m, "no", 0) for m in store.claim(10, LEASE, "me")], "me")
        assert {row["id"]: row["retries"] for row in backend.rows()} == {first: 5, second: 2}


@pytest.mark.parametrize("retention", [None, 3600])
class TestForgottenClaims:
    """A crash of the database may forget a claim, and a row may have been given back."""

    def forgotten(self, backend, retention):
        store = backend.store(retention=retention)
        message = claim_one(backend, store)
        store.release([message.id], "me")
        return store, message

    def test_what_the_broker_has_is_settled(self, backend, retention):
        store, message = self.forgotten(backend, retention)
        assert store.settle([Published(message)], "me") == 0
        assert backend.store().claim(10, LEASE, "heir") == []
        assert store.stats().depth == 0

    def test_but_not_while_another_relay_holds_it(self, backend, retention):
        store, message = self.forgotten(backend, retention)
        backend.store().claim(10, LEASE, "heir")
        before = backend.rows()
        assert store.settle([Published(message)], "me") == 1
        assert backend.rows() == before

    @pytest.mark.parametrize(
        "outcome",
        [
            pytest.param(lambda message: Retry(message, "e", 60), id="retry"),
            pytest.param(lambda message: Deferred(message, "e", 60), id="deferred"),
            pytest.param(lambda message: Dead(message, "e", 1), id="dead"),
        ],
    )
    def test_every_other_outcome_needs_the_claim(self, backend, retention, outcome):
        store, message = self.forgotten(backend, retention)
        before = backend.rows()
        assert store.settle([outcome(message)], "me") == 1
        assert (backend.rows(), backend.dead_letters()) == (before, [])
