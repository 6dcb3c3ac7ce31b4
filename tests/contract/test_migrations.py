"""Migrations on every database: rows survive them both ways, and what failed halfway goes on."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connections
from django.db.migrations.loader import MigrationLoader

from celery_outbox_steps.errors import StoreNotReady
from celery_outbox_steps.messages import Dead, Published
from celery_outbox_steps.store import DeadLetters
from tests.contract import backends

BEFORE, AFTER = "0004", "0005"
STORED = """
INSERT INTO celery_outbox (task_id, task_name, args, kwargs, options, created_at, due_at, retries,
    schema_version)
SELECT task_id, task_name, args, kwargs, options, created_at, created_at, 0, 1
FROM celery_outbox_dead_letter WHERE failure_reason = 'template'
"""


@pytest.fixture
def old(database, tmp_path):
    """A database of the release before, with a row and a dead letter of that."""
    with backends.opened(database.name, tmp_path, migrated=False) as backend:
        migrate(backend, BEFORE)
        now = "CURRENT_TIMESTAMP"
        backend.execute(
            "INSERT INTO celery_outbox_dead_letter (task_id, task_name, args, kwargs, options,"
            " created_at, dead_at, retries, schema_version, failure_reason) VALUES"
            f" ('id', 'tests.task', '[1]', '{{}}', '{{}}', {now}, {now}, 5, 1, 'template')"
        )
        backend.execute(STORED)
        yield backend


def migrate(backend, release):
    call_command("migrate", "celery_outbox", release, database=backend.alias, verbosity=0)


def everything(backend):
    columns = "task_id, task_name, args, kwargs, options, created_at, retries, schema_version"
    return [
        backend.execute(f"SELECT {columns} FROM {table} ORDER BY id")
        for table in ("celery_outbox", "celery_outbox_dead_letter")
    ]


def test_rows_of_the_release_before_survive_the_migration_and_its_way_back(old):
    before = everything(old)
    migrate(old, AFTER)
    assert everything(old) == before
    assert old.execute("SELECT destination, position FROM celery_outbox_dead_letter") == [
        (None, None)
    ]
    migrate(old, BEFORE)
    assert everything(old) == before
    migrate(old, AFTER)
    store = old.store()
    store.check()
    assert [message.args for message in store.claim(10, 60, "me")] == ["[1]"]


def test_the_release_before_and_this_one_work_on_the_same_rows(old):
    """It knows no destination, and names no column that is new: what it does has no effect on
    messages for destinations, and what it leaves is understood."""
    migrate(old, AFTER)
    lane = old.store(destinations=["lake"]).deliveries.lane("lake")
    old.add(2, destination="lake", order_key="k")
    old.execute(STORED)
    store = old.store()
    rows = store.claim(10, 60, "me")
    assert len(rows) == 2
    store.settle([Published(rows[0]), Dead(rows[1], "no", 1)], "me")
    (first, second) = lane.claim(10, 60, "me")
    lane.settle([Published(first), Dead(second, "no", 1)], "me")
    assert store.replay(DeadLetters()) == 3
    assert (len(old.rows()), len(old.rows("lake"))) == (2, 1)


def test_a_new_column_that_is_missing_is_named(old):
    migrate(old, AFTER)
    old.execute("ALTER TABLE celery_outbox DROP COLUMN paced")
    with pytest.raises(StoreNotReady, match="no column paced; run: "):
        old.store().check()


def test_what_mysql_made_before_a_migration_failed_is_no_obstacle(old):
    """Its DDL is not undone. Django's own operations can't be repeated; ours can."""
    if old.vendor != "mysql":
        pytest.skip("a migration that fails is undone as a whole")
    migration = MigrationLoader(None).get_migration("celery_outbox", "0005_destinations")
    locks = migration.operations[0].code
    with connections[old.alias].schema_editor() as editor:
        editor.execute("CREATE TABLE celery_outbox_order_lock (id integer PRIMARY KEY)")
        editor.execute("INSERT INTO celery_outbox_order_lock VALUES (7)")
        locks(None, editor)
    assert old.execute("SELECT count(*), min(id), max(id) FROM celery_outbox_order_lock") == [
        (16_384, 0, 16_383)
    ]
    migrate(old, AFTER)
    old.store().check()
