"""A relay never waits for rows that another one holds, however small the table is."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest

from celery_outbox_steps.messages import Dead, Deferred, Published, Retry
from django_integration.store.session import own_wrapper

LEASE = 300.0


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
