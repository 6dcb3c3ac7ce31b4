"""A relay never waits for rows that another one holds, however small the table is."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from django.db import connections

from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.messages import Dead, Deferred, Published, Retry
from django_integration.store.session import own_wrapper

LEASE = 300.0
LOCK_TIMEOUTS = {
    "postgresql": ("SELECT setting::int / 1000 FROM pg_settings WHERE name = 'lock_timeout'", 20),
    "mysql": ("SELECT @@lock_wait_timeout", 20),
}
LOCKS = {
    "postgresql": "BEGIN; LOCK TABLE celery_outbox IN ACCESS EXCLUSIVE MODE",
    "mysql": "LOCK TABLES celery_outbox WRITE",
}
IMPATIENT = {
    "postgresql": {"options": "-c lock_timeout=100"},
    "mysql": {"init_command": "SET SESSION lock_wait_timeout = 1"},
}


@contextmanager
def locked(database, row):
    """Another session that holds a row, as a relay does in the middle of its claim."""
    other = own_wrapper(database.alias, {})
    with other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT id FROM celery_outbox WHERE id = %s FOR UPDATE", [row])
        try:
            yield
        finally:
            cursor.execute("ROLLBACK")
            other.close()


def work(store, outcome, rows):
    """Everything that a relay does, on the rows that the other one does not hold."""
    for _ in range(2):
        ids = [message.id for message in store.claim(10, LEASE, "me")]
        assert store.release(ids, "me") == len(rows)
    first, *rest = store.claim(10, LEASE, "me")
    assert [first.id, *(message.id for message in rest)] == rows
    assert store.settle([Retry(first, "e", 9), *map(outcome, rest)], "me") == 0


@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(Published, id="published"),
        pytest.param(lambda message: Deferred(message, "e", 9), id="deferred"),
        pytest.param(lambda message: Dead(message, "e", 1), id="dead"),
    ],
)
def test_a_relay_waits_for_nobody(database, outcome):
    if database.vendor == "sqlite":
        pytest.skip("SQLite has one lock for all")
    foreign, *rows = database.add(9)
    store = database.store()
    done = []
    thread = threading.Thread(target=lambda: done.append(work(store, outcome, rows)))
    with locked(database, foreign):
        thread.start()
        thread.join(20)
        finished = not thread.is_alive()
    thread.join(20)
    assert finished
    assert done == [None]


@pytest.fixture
def locking(database):
    if database.vendor == "sqlite":
        pytest.skip("SQLite's own timeout is an option of Django's")
    return database


def test_a_relay_waits_for_a_lock_only_so_long(locking):
    store = locking.store()
    store.claim(1, LEASE, "me")
    sql, seconds = LOCK_TIMEOUTS[locking.vendor]
    assert store._session.rows(sql) == [(seconds,)]


def test_a_project_that_waits_less_is_followed_and_a_locked_table_is_an_error(locking):
    settings = connections[locking.alias].settings_dict
    before, settings["OPTIONS"] = settings["OPTIONS"], IMPATIENT[locking.vendor]
    other = own_wrapper(locking.alias, {})
    try:
        with other.cursor() as cursor:
            cursor.execute(LOCKS[locking.vendor])
            with pytest.raises(StoreError, match=r"(?i)lock"):
                locking.store().claim(1, LEASE, "me")
    finally:
        other.close()
        settings["OPTIONS"] = before
