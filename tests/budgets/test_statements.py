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
