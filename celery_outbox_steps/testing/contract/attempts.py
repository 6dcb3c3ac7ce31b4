"""Attempts are counted once, with or without a `begin_attempt` before them.

Part of `StoreContract`: `Store.begin_attempt`, and the `retries` of a row after each outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_outbox_steps.messages import Dead, Deferred, Published, Retry
from celery_outbox_steps.store import INTERRUPTED
from celery_outbox_steps.testing.contract.backend import LEASE, only

if TYPE_CHECKING:
    from celery_outbox_steps.messages import ClaimedMessage
    from celery_outbox_steps.store import Store
    from celery_outbox_steps.testing.contract.backend import Backend


class AttemptsContract:
    """`begin_attempt`, and the value of `retries` after each outcome."""

    def test_the_row_remembers_an_attempt_before_it_is_made(self, backend: Backend) -> None:
        store = backend.store()
        store.begin_attempt(claim_one(backend, store, retries=2), "me")
        row = only(backend.rows())
        assert (row["retries"], row["last_error"], row["claimed_by"]) == (3, INTERRUPTED, "me")
        assert backend.seconds_until(row["updated_at"]) == pytest.approx(0, abs=20)

    def test_the_next_relay_sees_the_attempt_of_a_dead_one(self, backend: Backend) -> None:
        store = backend.store()
        store.begin_attempt(claim_one(backend, store), "me")
        backend.pass_time(LEASE + 1)
        message = only(backend.store().claim(10, LEASE, "successor"))
        assert (message.retries, message.attempted, message.orphaned) == (1, True, True)

    def test_begin_attempt_returns_the_message_as_it_was_claimed(self, backend: Backend) -> None:
        store = backend.store()
        message = claim_one(backend, store, args="[1]", payload=b"x", retries=2)
        assert store.begin_attempt(message, "me") == message

    def test_begin_attempt_brings_the_contents_of_an_oversized_row(self, backend: Backend) -> None:
        store = backend.store()
        contents: dict[str, Any] = {
            "args": "[1]",
            "kwargs": '{"a": 1}',
            "options": "{}",
            "payload": b"x" * 2000,
        }
        message = claim_one(backend, store, **contents)
        assert message.oversized
        assert store.begin_attempt(message, "me") == message._replace(**contents)
        begun = store.begin_attempt(message, "me")
        assert begun is not None
        assert type(begun.payload) is bytes

    def test_an_attempt_that_is_begun_twice_counts_once(self, backend: Backend) -> None:
        store = backend.store()
        message = claim_one(backend, store)
        assert store.begin_attempt(message, "me") == store.begin_attempt(message, "me")
        assert only(backend.rows())["retries"] == 1

    def test_an_attempt_on_a_row_of_another_relay_is_not_begun(self, backend: Backend) -> None:
        store = backend.store()
        message = claim_one(backend, store, "slow")
        backend.pass_time(LEASE + 1)
        backend.store().claim(10, LEASE, "successor")
        before = backend.rows()
        assert store.begin_attempt(message, "slow") is None
        assert backend.rows() == before

    def test_an_attempt_on_a_row_that_is_gone_is_not_begun(self, backend: Backend) -> None:
        store = backend.store()
        message = claim_one(backend, store)
        store.settle([Published(message)], "me")
        assert store.begin_attempt(message, "me") is None

    @pytest.mark.parametrize("begun", [False, True])
    def test_a_retry_counts_once(self, backend: Backend, begun: bool) -> None:
        store = backend.store()
        message = claim_one(backend, store, retries=1)
        if begun:
            store.begin_attempt(message, "me")
        store.settle([Retry(message, "no", 0)], "me")
        row = only(backend.rows())
        assert (row["retries"], row["last_error"]) == (2, "no")

    @pytest.mark.parametrize("begun", [False, True])
    def test_an_outage_counts_nothing(self, backend: Backend, begun: bool) -> None:
        store = backend.store()
        message = claim_one(backend, store, retries=1)
        if begun:
            store.begin_attempt(message, "me")
        store.settle([Deferred(message, "away", 0)], "me")
        assert only(backend.rows())["retries"] == 1

    @pytest.mark.parametrize("begun", [False, True])
    def test_a_dead_letter_shows_all_its_attempts(self, backend: Backend, begun: bool) -> None:
        store = backend.store()
        message = claim_one(backend, store, retries=2)
        if begun:
            store.begin_attempt(message, "me")
        store.settle([Dead(message, "no", 3)], "me")
        assert only(backend.dead_letters())["retries"] == 3

    @pytest.mark.parametrize("begun", [False, True])
    def test_a_kept_row_shows_its_failed_attempts_and_no_error(
        self, backend: Backend, begun: bool
    ) -> None:
        store = backend.store(retention=3600)
        for retries in (0, 2):
            message = claim_one(backend, store, retries=retries)
            if begun:
                store.begin_attempt(message, "me")
            store.settle([Published(message)], "me")
        assert [(row["retries"], row["last_error"]) for row in backend.rows()] == [
            (0, None), (2, None),
        ]  # fmt: skip

    def test_rows_with_different_attempts_are_settled_each_with_its_own(
        self, backend: Backend
    ) -> None:
        first, second = only(backend.add(retries=4)), only(backend.add(retries=1))
        store = backend.store()
        store.settle([Retry(m, "no", 0) for m in store.claim(10, LEASE, "me")], "me")
        assert {row["id"]: row["retries"] for row in backend.rows()} == {first: 5, second: 2}


def claim_one(backend: Backend, store: Store, relay: str = "me", **columns: Any) -> ClaimedMessage:
    backend.add(**columns)
    return only(store.claim(10, LEASE, relay, max_bytes=1000))
