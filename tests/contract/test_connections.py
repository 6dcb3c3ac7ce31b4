"""What our stores promise beyond the contract: broken connections, missing tables, drivers."""

from __future__ import annotations

import pytest

from celery_outbox_steps.errors import StoreError
from tests.contract import backends

LEASE = 300.0


def test_after_a_failed_claim_nothing_is_hidden(database):
    """Wherever the failed one left off: a row far below the last one is found at once."""
    store = database.store()
    database.add(2)
    store.claim(1, LEASE, "me")
    (late,) = database.add(due_in=-3600)
    store._session.raw.close()  # behind the store's back
    with pytest.raises(StoreError):
        store.claim(10, LEASE, "me")
    assert store.claim(10, LEASE, "me")[0].id == late


def test_says_which_drivers_block_an_event_loop(backend):
    blocking = {"psycopg2", "mysqlclient"}
    assert backend.store().blocks_event_loop is (backend.name in blocking)


def test_check_names_the_fix_for_missing_tables(database, tmp_path):
    with (
        backends.opened(database.name, tmp_path, migrated=False) as empty,
        pytest.raises(StoreError, match=r"manage\.py migrate"),
    ):
        empty.store().check()
