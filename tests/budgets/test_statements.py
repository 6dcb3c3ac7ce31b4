"""How many statements the database sees: one per call, one per bulk, a fixed few per batch and per
check-in."""

from __future__ import annotations

import pytest
from celery import group
from django.db import connection, transaction

from celery_outbox_steps.fleet import RELAYING, Member
from django_integration.store import DjangoStore
from tests.budgets.conftest import VENDORS, counted, enqueue

PER_BATCH = {
    "postgresql": ["WITH due", "DELETE"],
    "mysql": ["BEGIN", "SELECT", "UPDATE", "COMMIT", "DELETE"],
    "sqlite": ["BEGIN", "SELECT", "UPDATE", "COMMIT", "DELETE"],
}

pytestmark = pytest.mark.rabbitmq


@pytest.fixture(params=VENDORS)
def vendor(request, use_database):
    use_database(request.param)
    return request.param


@pytest.fixture
def noop(app):
    return app.tasks["budgets.noop"]


def test_a_call_is_one_insert(vendor, noop):
    with transaction.atomic():
        noop.delay(0)
        with counted(connection) as statements:
            noop.delay(1)
    assert len(statements) == 1
    assert "INSERT INTO celery_outbox" in statements[0]


def test_a_call_outside_of_a_transaction_is_one_insert(vendor, noop):
    noop.delay(0)
    with counted(connection) as statements:
        noop.delay(1)
    assert len(statements) == 1


def test_a_call_without_a_key_names_no_key(vendor, noop):
    with counted(connection) as statements:
        noop.delay(1)
    assert "outbox_key" not in statements[0]


KEYED = {
    "postgresql": {"free": 1, "keep": 4, "replace": 5},
    "mysql": {"free": 3, "keep": 2, "replace": 3},
    "sqlite": {"free": 1, "keep": 2, "replace": 3},
}


@pytest.mark.parametrize("on_conflict", [None, "keep", "replace"], ids=str)
def test_a_call_with_a_key_is_a_fixed_few_statements(vendor, noop, on_conflict):
    bound = KEYED[vendor][on_conflict or "free"]
    with transaction.atomic():
        if on_conflict:
            noop.apply_async((0,), outbox_key="k")
        with counted(connection) as statements:
            noop.apply_async((1,), outbox_key="k", outbox_on_conflict=on_conflict)
    own = [sql for sql in statements if "pg_notify" not in sql and "id IS NULL" not in sql]
    assert len(own) == bound
    assert len(statements) <= bound + 1  # the wake-up, or SQLite's write lock


@pytest.mark.postgresql
def test_calls_without_a_key_write_nothing_to_the_index_of_keys(use_database, noop):
    use_database("postgresql")

    def pages():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_relation_size('celery_outbox_key') / 8192")
            return cursor.fetchone()[0]

    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE celery_outbox")
    for number in range(3):
        noop.delay(number)
    assert pages() == 1  # the page that every index has
    noop.apply_async((0,), outbox_key="k")
    assert pages() > 1


@pytest.mark.parametrize("count", [2, 90])
def test_a_bulk_is_one_insert(vendor, app, count):
    with transaction.atomic(), counted(connection) as statements, app.outbox_bulk():
        for number in range(count):
            app.tasks["budgets.noop"].delay(number)
    assert len([sql for sql in statements if "INSERT" in sql]) == 1
    assert len(statements) == 1


def test_a_group_is_one_insert(vendor, noop):
    with transaction.atomic(), counted(connection) as statements:
        group(noop.s(number) for number in range(20)).apply_async()
    assert len(statements) == 1


@pytest.mark.parametrize("count", [50, 500])
def test_a_batch_is_claimed_and_settled_with_the_same_few(vendor, app, relay_of, count):
    relay = relay_of(app)
    enqueue(app, 1)
    relay.run_once()
    enqueue(app, count)
    with counted(relay._store._session.wrapper) as statements:
        assert relay.run_once().published == count
    assert kinds(statements)[-len(PER_BATCH[vendor]) :] == PER_BATCH[vendor]
    # One claim from where the last one ended; perhaps one more, from the very beginning.
    assert len(statements) <= len(PER_BATCH[vendor]) + claims(vendor)


def test_an_idle_relay_only_claims(vendor, app, relay_of):
    relay = relay_of(app)
    relay.run_once()
    with counted(relay._store._session.wrapper) as statements:
        assert relay.run_once().claimed == 0
    assert len(statements) <= 2 * claims(vendor)
    assert not any("count(" in sql.lower() for sql in statements)


def test_failures_that_are_alike_share_a_statement(vendor, app, relay_of):
    relay = relay_of(app, declare=False)  # so that the queue does not exist
    enqueue(app, 100)
    with counted(relay._store._session.wrapper) as statements:
        assert relay.run_once().retried == 100
    assert kinds(statements)[-3:] == ["BEGIN", "UPDATE", "COMMIT"]


def test_a_check_in_is_a_look_and_an_update(vendor):
    """Of a member with a slot. One without looks for the first gap between the turns as well."""
    store = DjangoStore("default")
    for name, more in (("first", []), ("second", ["SELECT"])):
        member = Member(name, "celery@host", "1", RELAYING)
        store.check_in(member, relays=1, wants_slot=True)
        with counted(store._session.wrapper) as statements:
            store.check_in(member, relays=1, wants_slot=True)
        assert kinds(statements) == ["SELECT", *more, "UPDATE"]
    store.close()


def test_a_session_that_only_looks_opens_with_one_statement_at_most(vendor):
    store = DjangoStore("default")
    with counted(store._session.wrapper) as statements:
        store._session.open()
    assert len([sql for sql in statements if "celery_outbox" in sql or "set_config" in sql]) <= 1
    assert not any("LISTEN" in sql for sql in statements)
    store.close()


def kinds(statements):
    return [" ".join(sql.split()[:2]).rstrip() if "WITH" in sql else sql.split()[0]
            for sql in statements]  # fmt: skip


def claims(vendor):
    """Statements of one more claim: PostgreSQL needs no transaction around it."""
    return 1 if vendor == "postgresql" else 4
