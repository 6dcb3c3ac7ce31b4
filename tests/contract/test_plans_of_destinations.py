"""What a lane reads is O(batch), whatever its destination and the others hold: counted, not timed.

The table holds about 170,000 rows: due ones for another destination, and for this one rows that
back off, that are held back by a dead letter, that are behind a leased one of the same key, and
some with keys that are due. The statistics are from the time when the table was empty.
"""

from __future__ import annotations

import pytest
from django.db import connections

from celery_outbox_steps.messages import Published, Retry
from celery_outbox_steps.testing.contract.destinations import LAKE, OTHER, lane_of
from django_integration.schema import FAR

LIMIT = 200
DELIVERY = "celery_outbox_delivery"
COLUMNS = (
    "task_id, task_name, args, kwargs, options, created_at, due_at, retries, schema_version,"
    " destination, order_key, claimed_by, claimed_until, updated_at"
)
MOST_READ = 20 * LIMIT


@pytest.fixture(scope="module")
def full(opened_backend):
    opened_backend.clear()
    if opened_backend.vendor == "postgresql":
        opened_backend.execute(f"ALTER TABLE {DELIVERY} SET (autovacuum_enabled = off)")
        opened_backend.execute(f"ANALYZE {DELIVERY}")
    opened_backend.add(destination=OTHER, due_in=-60)
    opened_backend.add(destination=OTHER, order_key="k", due_in=-60)
    opened_backend.add(destination=LAKE, order_key="backing off", due_in=3600)
    opened_backend.add(destination=LAKE, order_key="dead")
    opened_backend.execute(f"UPDATE {DELIVERY} SET due_at = {FAR[opened_backend.vendor]}"
                           " WHERE order_key = 'dead'")  # fmt: skip
    double(opened_backend, 15)
    dead_letter = "destination, order_key, position, dead_at, failure_reason"
    opened_backend.execute(
        "INSERT INTO celery_outbox_dead_letter (task_id, task_name, args, kwargs, options,"
        f" created_at, retries, schema_version, {dead_letter}) SELECT task_id, task_name, args,"
        " kwargs, options, created_at, 0, 100, destination, order_key, 0, created_at, 'no'"
        f" FROM {DELIVERY} WHERE order_key = 'k' OR id = (SELECT min(id) FROM {DELIVERY}"
        " WHERE order_key = 'dead') LIMIT 3000"
    )
    opened_backend.add(destination=LAKE, order_key="leased", due_in=-60)
    lane_of(opened_backend).claim(1, 300, "another relay")
    yield opened_backend
    opened_backend.clear()


@pytest.fixture
def database(full):
    return full


def double(database, times, where="1 = 1"):
    for _ in range(times):
        database.execute(
            f"INSERT INTO {DELIVERY} ({COLUMNS}) SELECT {COLUMNS} FROM {DELIVERY} WHERE {where}"
        )


class Reads:
    """Rows and index entries that a lane's session has read, by the database's own count."""

    def __init__(self, database, lane):
        self._database = database
        self._lane = lane
        self._before = self._total()

    def __call__(self):
        before, self._before = self._before, self._total()
        return self._before - before

    def _total(self):
        session = self._lane._session
        if self._database.vendor == "mysql":
            found = session.rows("SHOW SESSION STATUS LIKE 'Handler_read%%'")
            return sum(int(value) for _, value in found)
        session.rows("SELECT pg_stat_force_next_flush()")
        session.rows("SELECT 1")
        tables = f"('{DELIVERY}', 'celery_outbox_dead_letter')"
        counted = self._database.execute(
            "SELECT sum(seq_tup_read) + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes"
            f" WHERE relname IN {tables}) FROM pg_stat_user_tables WHERE relname IN {tables}"
        )
        return int(counted[0][0])


def test_a_lane_reads_no_more_than_its_batch(database):
    if database.vendor == "sqlite":
        pytest.skip("SQLite does not count")
    for number in range(LIMIT // 2):
        database.add(2, destination=LAKE, order_key=f"key {number}", due_in=-30)
    waiting = database.add(destination=LAKE, order_key="leased", due_in=-40)
    double(database, 6, f"id = {waiting[0]}")
    lane = lane_of(database)
    lane._begin_claims()
    reads, found = Reads(database, lane), {}
    claimed = lane.claim(LIMIT, 300, "me")
    found["claim, some wait"] = reads()
    assert 100 <= len(claimed) <= LIMIT
    lane.settle([Published(row) for row in claimed[:-9]], "me")
    found["settle and release"] = reads()
    lane.settle([Retry(row, "no", 60.0) for row in claimed[-9:]], "me")
    ahead = lane.claim(LIMIT, 300, "me", in_hand=[row.id for row in claimed])
    found["claim ahead"] = reads()
    lane.renew([row.id for row in ahead], 300, "me")
    lane.release([row.id for row in ahead], "me")
    found["renew and release"] = reads()
    fresh = lane_of(database)
    fresh._begin_claims()
    reads = Reads(database, fresh)
    fresh._order.look_after()
    found["look after"] = reads()
    assert {name: count for name, count in found.items() if count > MOST_READ} == {}


def test_every_statement_of_a_lane_uses_an_index(database):
    if database.vendor != "sqlite":
        pytest.skip("counted by the test above")
    noted = []
    database.add(3, destination=LAKE, order_key="new", due_in=-30)
    lane, other = lane_of(database), lane_of(database)
    lane._session.open()

    def note(execute, sql, params, *rest):
        if sql.startswith(("SELECT", "UPDATE", "DELETE")):
            noted.append((sql, params))
        return execute(sql, params, *rest)

    with lane._session.wrapper.execute_wrapper(note):
        (first,) = lane.claim(1, 300, "me")
        other.claim(5, 300, "other")
        lane.settle([Published(first)], "me")
        lane.claim(1, 300, "me")
    assert len(noted) > 10
    for sql, params in noted:
        with connections[database.alias].cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
            steps = [step[-1] for step in cursor.fetchall()]
        assert not [step for step in steps if step.startswith("SCAN celery_outbox")], (sql, steps)
        assert not [step for step in steps if "AUTOMATIC" in step], (sql, steps)
