"""What may come between a settle and the next row of its key: an end, an error, a lock, a crowd."""

from __future__ import annotations

import threading

import pytest
from django.db import OperationalError

from celery_outbox_steps.messages import Dead, Published
from celery_outbox_steps.store import DeadLetters
from celery_outbox_steps.testing.contract.backend import LEASE, eventually, ids_of, only
from celery_outbox_steps.testing.contract.destinations import LAKE, OTHER, lane_of
from celery_outbox_steps.testing.contract.ordering import add
from django_integration.schema import FAR
from django_integration.store import deliveries
from django_integration.store.lane import LaneStore
from django_integration.store.session import own_wrapper

COLUMNS = (
    "task_id, task_name, args, kwargs, options, created_at, due_at, retries, schema_version,"
    " destination, order_key"
)


def fill(database, row, doublings):
    """So many more rows like this one. Returns how many there are."""
    for _ in range(doublings):
        database.execute(
            f"INSERT INTO celery_outbox_delivery ({COLUMNS}) SELECT {COLUMNS}"
            " FROM celery_outbox_delivery WHERE order_key ="
            f" (SELECT order_key FROM celery_outbox_delivery WHERE id = {row})"
        )
    return 2**doublings


def hold_back(database):
    far = FAR[database.vendor]
    database.execute(f"UPDATE celery_outbox_delivery SET due_at = {far} WHERE due_at IS NOT NULL")


def test_what_a_relay_that_died_after_its_settle_left_held_back_is_found(database):
    first, second = add(database, "k", "k")
    dying, other = lane_of(database), lane_of(database)
    message = only(dying.claim(1, LEASE, "dying"))
    assert other.claim(10, LEASE, "other") == []
    LaneStore.settle(dying, [Published(message)], "dying")
    assert ids_of(lane_of(database).claim(10, LEASE, "me")) == [second]
    assert first not in [row["id"] for row in database.rows(LAKE)]


def test_what_was_left_held_back_is_found_behind_many_rows_that_a_dead_letter_holds_back(database):
    dead, second = add(database, "dead", "dead")
    lane = lane_of(database)
    lane.settle([Dead(only(lane.claim(1, LEASE, "me")), "no", 1)], "me")
    fill(database, second, 12)
    (left,) = add(database, "left")
    hold_back(database)
    lane = lane_of(database)
    assert ids_of(eventually(lambda: lane.claim(10, LEASE, "me"), 4.0)) == [left]
    assert dead < second


def test_what_many_dead_letters_held_back_is_due_once_they_are_discarded(database):
    """It need not wait for the looks of a relay, which are some time apart."""
    keys = [f"key-{number}" for number in range(60)]
    firsts, seconds = add(database, *keys), add(database, *keys)
    lane = lane_of(database)
    claimed = lane.claim(len(firsts), LEASE, "me")
    lane.settle([Dead(message, "no", 1) for message in claimed], "me")
    hold_back(database)
    store = database.store()
    assert [store.purge_dead_letters(DeadLetters(), 30) for _ in range(3)] == [30, 30, 0]
    assert database.execute(
        f"SELECT count(*) FROM celery_outbox_delivery WHERE due_at < {FAR[database.vendor]}"
    ) == [(len(seconds),)]


def test_a_relay_that_found_only_rows_that_wait_claims_again_at_once(database, monkeypatch):
    monkeypatch.setattr(deliveries, "MOST_CLAIMS", 2)
    _, second = add(database, "k", "k", due_in=-10)
    lane_of(database).claim(1, LEASE, "other")
    fill(database, second, 5)
    free = only(database.add(destination=LAKE))
    lane = lane_of(database)
    for _ in range(3):
        assert lane.claim(5, LEASE, "me") == []
        assert lane.seconds_to_wait(60) < 0.1
    assert ids_of(lane.claim(20, LEASE, "me")) == [free]


def test_the_rows_of_a_busy_key_are_due_together_however_many_others_are_between_them(database):
    """If each waited for the one before it to be settled, a key would be slow."""
    rows = []
    for _ in range(40):
        rows += add(database, "busy")
        database.add(destination=OTHER)
        database.execute(
            "INSERT INTO celery_outbox_delivery"
            f" ({COLUMNS}) SELECT {COLUMNS} FROM celery_outbox_delivery"
            " WHERE destination = 'other' ORDER BY id DESC LIMIT 40"
        )
    lane = lane_of(database)
    first = only(lane.claim(1, LEASE, "me"))
    assert lane_of(database).claim(100, LEASE, "other") == []
    lane.settle([Published(first)], "me")
    assert ids_of(lane.claim(100, LEASE, "me")) == rows[1:]


def test_a_settle_counts_though_the_next_row_could_not_be_made_due(database):
    """The relay would report its messages as fenced off, if it had to repeat the settle."""
    _, second = add(database, "k", "k")
    lane = lane_of(database)
    message = only(lane.claim(1, LEASE, "me"))
    assert lane_of(database).claim(10, LEASE, "other") == []

    def refuse(execute, sql, *rest):
        if sql.startswith("UPDATE"):
            raise OperationalError("deadlock")
        return execute(sql, *rest)

    lane._session.wrapper.execute_wrappers.append(refuse)
    assert lane.settle([Published(message)], "me") == 0
    assert ids_of(lane.claim(10, LEASE, "me")) == [second]


def test_a_settle_does_not_wait_for_a_row_that_a_transaction_reschedules(database):
    """All relays of a worker for destinations would wait with it."""
    if database.vendor == "sqlite":
        pytest.skip("SQLite has one lock for all")
    _, second = add(database, "k", "k")
    lane = lane_of(database)
    message = only(lane.claim(1, LEASE, "me"))
    assert lane_of(database).claim(10, LEASE, "other") == []
    other, done = own_wrapper(database.alias, {}), []
    thread = threading.Thread(target=lambda: done.append(lane.settle([Published(message)], "me")))
    with other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT id FROM celery_outbox_delivery WHERE id = %s FOR UPDATE", [second])
        thread.start()
        thread.join(5)
        finished = not thread.is_alive()
        cursor.execute("ROLLBACK")
        other.close()
    thread.join(20)
    assert (finished, done) == (True, [0])
    assert ids_of(lane_of(database).claim(10, LEASE, "me")) == [second]
