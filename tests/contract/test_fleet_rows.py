"""Rows of the fleet that somebody deleted or edited by hand, and databases of an older release."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connections

from celery_outbox_steps.errors import StoreNotReady
from celery_outbox_steps.fleet import LONGEST_TURN, RELAYING, TURN, Member
from celery_outbox_steps.testing.contract.fleet import look, seen, slots
from django_integration.models import CeleryOutboxPause, CeleryOutboxRelay
from tests.contract import backends

NEVER = "9999-01-01 00:00:00"
LONG_AGO = "1970-01-01 00:00:01"


@pytest.fixture
def store(database):
    """Three members, of which two have a slot."""
    store = database.store()
    for name in "abc":
        look(store, name)
    return store


def edit(database, relay_id, **columns):
    changes = ", ".join(f"{name} = %s" for name in columns)
    sql = f"UPDATE celery_outbox_relay SET {changes} WHERE relay_id = %s"
    database.execute(sql, *columns.values(), relay_id)


def test_a_deleted_member_is_there_again_and_keeps_its_slot_if_nobody_was_faster(database, store):
    database.delete_member("a")
    database.delete_member("b")
    assert [look(store, name).at_work for name in "bca"] == [True, True, False]
    assert slots(store) == {"b": 0, "c": 1, "a": None}


@pytest.mark.parametrize("slot", [77, -1, None])
def test_a_member_whose_slot_was_edited_takes_the_lowest_free_one(database, store, slot):
    edit(database, "a", slot=slot)
    assert look(store, "a").at_work
    assert slots(store) == {"a": 0, "b": 1, "c": None}


@pytest.mark.parametrize("expires", [NEVER, LONG_AGO])
def test_a_dead_member_can_not_be_made_to_block_its_slot(database, store, expires):
    edit(database, "a", expires_at=expires)
    assert look(store, "c").at_work
    assert slots(store)["c"] == 0
    assert not look(store, "a").at_work


def test_a_standby_that_would_never_end_is_forgotten(database, store):
    edit(database, "c", expires_at=NEVER, turn_at=NEVER, seen_at=NEVER)
    assert not seen(store)["c"].alive
    look(store, "a")
    assert set(slots(store)) == {"a", "b"}
    assert look(store, "c").check_in_after < 2 * TURN


@pytest.mark.parametrize("turn", [NEVER, LONG_AGO])
def test_an_edited_turn_moves_no_other_one(database, store, turn):
    database.pass_time(TURN)
    edit(database, "c", turn_at=turn)
    assert look(store, "d").check_in_after < 2 * TURN < LONGEST_TURN


def test_a_time_in_the_future_does_not_end_the_rule_of_silence(database, store):
    database.pass_time(60.0)
    edit(database, "c", seen_at=NEVER)
    assert [look(store, name).at_work for name in "cab"] == [False, True, True]


@pytest.mark.parametrize("counters", ["", "no json", "[1]", "null", '{"a": "b", "n": 1.5}'])
def test_counters_that_are_no_counters_are_shown_as_none(database, store, counters):
    edit(database, "a", counters=counters, worker="", version="", state="", rate=-1)
    assert seen(store)["a"].member == Member("a", "", "", "", -1.0)
    look(store, "a")
    assert seen(store)["a"].member.state == RELAYING


def test_what_a_member_tells_always_fits(database):
    store = database.store()
    member = Member("a", "w" * 300, "\ud800", "s\x00" * 200, float("nan"), {}, "🙈\x00" * 1000)
    assert store.check_in(member, relays=1, wants_slot=True).at_work
    shown = seen(store)["a"].member
    assert (shown.worker, shown.rate) == ("w" * 255, 0.0)


def test_on_a_borrowed_connection_the_transaction_survives_a_lost_race(database, store):
    """As in the admin, and in a project's tests."""
    from django.db import transaction

    from django_integration.store import DjangoStore

    borrowing = DjangoStore(database.alias, connection=connections[database.alias])
    with transaction.atomic(using=database.alias):
        borrowing.pause("x", "me")
        assert borrowing._session.try_run(
            "UPDATE celery_outbox_relay SET slot = 0 WHERE relay_id = 'c'"
        ) is None  # fmt: skip
        assert look(borrowing, "c").pause.reason == "x"


def test_a_pause_is_a_row_that_operators_can_read_and_delete(database, store):
    store.pause("x" * 1000, "\x00" + "n" * 300)
    (row,) = CeleryOutboxPause.objects.using(database.alias)
    assert (row.name, row.reason) == ("", "x" * 1000)
    row.delete()
    assert look(store, "a").pause is None


def test_a_look_does_not_listen(postgresql):
    store = postgresql.store()
    look(store, "a")
    store.check()
    assert store.listening is False
    assert store._session.rows("SELECT count(*) FROM pg_listening_channels()") == [(0,)]
    store.claim(1, 60, "a")
    assert store.listening is True


def test_check_ins_update_no_index(postgresql):
    """PostgreSQL then needs no vacuum for them: HOT."""
    counts = (
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables"
        " WHERE relname = 'celery_outbox_relay'"
    )
    store = postgresql.store()
    for name in "abc":
        look(store, name)
    store._session.run("BEGIN")  # so that the counts are not passed on in between
    ((updates, hot),) = store._session.rows(counts)
    for name in "abc":
        look(store, name)
    assert store._session.rows(counts) == [(updates + 3, hot + 3)]
    store._session.run("COMMIT")


def test_a_database_of_the_release_before_is_refused_with_the_fix(database, tmp_path):
    with backends.opened(database.name, tmp_path, migrated=False) as old:
        for release, missing in (
            ("0001", r"\w+_delivery, \w+_inbox, \w+_pause, \w+_rate, \w+_relay"),
            ("0003", r"\w+_delivery, \w+_inbox, \w+_rate"),
            ("0004", r"\w+_delivery, \w+_rate"),
        ):
            call_command("migrate", "celery_outbox", release, database=old.alias, verbosity=0)
            with pytest.raises(StoreNotReady, match=rf"no table {missing}; .* migrate"):
                old.store().check()
        call_command("migrate", "celery_outbox", database=old.alias, verbosity=0)
        old.store().check()


def test_the_release_before_works_on_with_the_new_tables():
    """They are only added: no column that it knows is touched."""
    from django.db import migrations
    from django.db.migrations.loader import MigrationLoader

    fleet = MigrationLoader(None).get_migration("celery_outbox", "0002_fleet")
    added = [each for each in fleet.operations if not isinstance(each, migrations.RunPython)]
    assert all(isinstance(each, migrations.CreateModel) for each in added)
    assert {each.name for each in added} == {
        CeleryOutboxRelay.__name__,
        CeleryOutboxPause.__name__,
    }
