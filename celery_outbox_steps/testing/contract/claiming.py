"""What a claim returns: which rows, in which order, and how many bytes of them.

Part of `StoreContract`: `Store.claim` without leases, which are in `leases`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from celery_outbox_steps.envelope import DELIVERY_VERSIONS, SUPPORTED_VERSIONS
from celery_outbox_steps.messages import Published
from celery_outbox_steps.testing.contract.backend import (
    LEASE,
    eventually,
    ids_of,
    only,
    repeat_until,
)

if TYPE_CHECKING:
    from celery_outbox_steps.testing.contract.backend import Backend

KB = 1024
UNKNOWN_VERSION = max(*SUPPORTED_VERSIONS, *DELIVERY_VERSIONS) + 1


class ClaimingContract:
    """Due rows, oldest first, as many as the limits allow, each to one relay."""

    def test_a_claim_hands_out_what_was_stored(self, backend: Backend) -> None:
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
        version = only(backend.rows())["schema_version"]
        message = only(backend.store().claim(10, LEASE, "me"))
        assert message[1:12] == (
            "abc",
            "shop.mail",
            '["ä", 1e22]',
            '{"b": 1, "a": 2}',
            '{"x": "\\u0000"}',
            b"\x00\xff",
            2,
            version,
            "t",
            "b",
            "{}",
        )
        assert type(message.payload) is bytes
        assert 0 <= message.waited < 60

    def test_a_claim_says_how_long_a_row_waited(self, backend: Backend) -> None:
        backend.add()
        backend.pass_time(100)
        assert only(backend.store().claim(10, LEASE, "me")).waited == pytest.approx(100, abs=20)

    def test_a_claim_takes_at_most_the_limit(self, backend: Backend) -> None:
        backend.add(5)
        store = backend.store()
        assert len(store.claim(3, LEASE, "me")) == 3
        assert len(store.claim(3, LEASE, "me")) == 2
        assert store.claim(3, LEASE, "me") == []

    def test_a_claim_goes_by_due_time(self, backend: Backend) -> None:
        late, early, middle = (only(backend.add(due_in=due)) for due in (-10, -30, -20))
        assert ids_of(backend.store().claim(10, LEASE, "me")) == [early, middle, late]

    def test_a_claim_leaves_rows_that_are_not_due_yet(self, backend: Backend) -> None:
        backend.add(due_in=60)
        assert backend.store().claim(10, LEASE, "me") == []
        backend.pass_time(61)
        assert len(backend.store().claim(10, LEASE, "me")) == 1

    def test_a_claim_leaves_rows_of_an_unknown_schema_version_alone(self, backend: Backend) -> None:
        known, unknown = only(backend.add()), only(backend.add(schema_version=UNKNOWN_VERSION))
        assert ids_of(backend.store().claim(10, LEASE, "me")) == [known]
        assert [row["claimed_by"] for row in backend.rows() if row["id"] == unknown] == [None]

    def test_a_row_that_is_due_before_the_last_claim_is_found(self, backend: Backend) -> None:
        store = backend.store()
        backend.add()
        store.settle([Published(only(store.claim(10, LEASE, "me")))], "me")
        late = only(backend.add(due_in=-3600))
        assert ids_of(eventually(lambda: store.claim(10, LEASE, "me"))) == [late]

    def test_a_claim_of_another_thread_is_settled_by_this_one(self, backend: Backend) -> None:
        """The next batch is claimed in a helper thread, while this one is published."""
        backend.add(2)
        store = backend.store()
        first = store.claim(1, LEASE, "me")
        with ThreadPoolExecutor(1) as helper:
            second = helper.submit(store.claim, 1, LEASE, "me").result()
        assert store.settle([Published(each) for each in (*first, *second)], "me") == 0
        assert backend.rows() == []

    def test_concurrent_claims_of_threads_never_overlap_and_miss_nothing(
        self, backend: Backend
    ) -> None:
        rows = backend.add(400)

        def relay(number: int) -> list[int]:
            store = backend.store()
            claimed = []
            for _ in repeat_until(lambda: all(row["claimed_by"] for row in backend.rows())):
                claimed += ids_of(store.claim(17, LEASE, f"relay {number}"))
            return claimed

        with ThreadPoolExecutor(4) as pool:
            claimed = [row for part in pool.map(relay, range(4)) for row in part]
        assert sorted(claimed) == rows

    def test_a_claim_takes_what_fits_together(self, backend: Backend) -> None:
        rows = add(backend, KB, KB, KB, KB)
        claimed = backend.store().claim(10, LEASE, "me", max_bytes=3 * KB)
        assert ids_of(claimed) == rows[:3]
        assert [message.args for message in claimed] == [text(KB - 4)] * 3
        assert taken(backend) == rows[:3]

    def test_without_a_bound_size_does_not_matter(self, backend: Backend) -> None:
        rows = add(backend, 500 * KB, 500 * KB, KB)
        claimed = backend.store().claim(10, LEASE, "me")
        assert ids_of(claimed) == rows
        assert [len(message.args) for message in claimed] == [500 * KB - 4, 500 * KB - 4, KB - 4]
        assert not any(message.oversized for message in claimed)

    @pytest.mark.parametrize("column", ["args", "kwargs", "options", "payload"])
    def test_all_contents_count_as_bytes(self, backend: Backend, column: str) -> None:
        columns: dict[str, Any] = {column: b"x" * KB if column == "payload" else text(KB)}
        backend.add(2, **columns)
        first = only(backend.store().claim(10, LEASE, "me", max_bytes=2 * KB))
        assert getattr(first, column) == columns[column]

    def test_rows_larger_than_their_share_come_with_their_contents(self, backend: Backend) -> None:
        add(backend, 10, 5 * KB, 10, 2 * KB, KB)
        claimed = backend.store().claim(10, LEASE, "me", max_bytes=7 * KB + 20)
        assert [len(message.args) + 4 for message in claimed] == [10, 5 * KB, 10, 2 * KB]
        assert [message.kwargs for message in claimed] == ["{}"] * 4

    def test_the_rest_follows_in_the_next_claim(self, backend: Backend) -> None:
        rows, store = add(backend, KB, KB, 3 * KB, KB, KB), backend.store()
        claims = [ids_of(store.claim(10, LEASE, "me", max_bytes=3 * KB)) for _ in range(4)]
        assert claims == [rows[:2], rows[2:3], rows[3:], []]

    def test_a_row_that_never_fits_comes_alone_and_without_its_contents(
        self, backend: Backend
    ) -> None:
        rows = add(backend, 5 * KB, 10)
        message = only(backend.store().claim(10, LEASE, "me", max_bytes=KB))
        assert (message.id, message.oversized) == (rows[0], True)
        assert message[3:7] == ("", "", "", None)
        assert taken(backend) == rows[:1]

    def test_a_row_that_never_fits_waits_until_it_is_the_first(self, backend: Backend) -> None:
        rows, store = add(backend, 10, 5 * KB, 10), backend.store()
        claims = [ids_of(store.claim(10, LEASE, "me", max_bytes=KB)) for _ in range(3)]
        assert claims == [rows[:1], rows[1:2], rows[2:]]

    def test_a_payload_that_never_fits_is_not_brought(self, backend: Backend) -> None:
        backend.add(payload=b"x" * KB)
        message = only(backend.store().claim(10, LEASE, "me", max_bytes=100))
        assert (message.oversized, message.payload) == (True, None)


def text(size: int) -> str:
    """A JSON string of this many bytes."""
    return f'"{"x" * (size - 2)}"'


def add(backend: Backend, *sizes: int) -> list[int]:
    """Rows whose contents take this many bytes each, in the order of their due times."""
    return [
        only(backend.add(due_in=number - 100, args=text(size - 4)))
        for number, size in enumerate(sizes)
    ]


def taken(backend: Backend) -> list[int]:
    return [row["id"] for row in backend.rows() if row["claimed_by"]]
