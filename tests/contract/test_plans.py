"""A claim costs O(batch): asked of the planner, never of a clock.

The table holds about 160,000 rows, nine in ten of them backing off. The statistics are the worst
that can happen to a queue: there are none, or they are from the time when the table was empty.
"""

from __future__ import annotations

import json
import re
from functools import partial
from types import SimpleNamespace

import pytest
from django.db import connections

from django_integration.enqueue.keyed import store_keyed
from django_integration.enqueue.rows import insert
from django_integration.schema import Key, Row
from django_integration.store.base import DIALECTS
from django_integration.store.dialect import ClaimRequest
from django_integration.store.mysql import MySQL
from django_integration.store.postgresql import FOR_TRANSACTION, PostgreSQL
from django_integration.store.sqlite import SQLite
from django_integration.store.stats import next_due_statement
from django_integration.store.watermark import Start
from tests.helpers import wait_for

LIMIT = 500
COLUMNS = "task_id, task_name, args, kwargs, options, created_at, due_at, retries, schema_version"


@pytest.fixture(scope="module")
def full(opened_backend):
    """163,840 rows, of which 16,384 are due."""
    opened_backend.clear()
    if opened_backend.vendor == "postgresql":
        opened_backend.execute("ALTER TABLE celery_outbox SET (autovacuum_enabled = off)")
        opened_backend.execute("ANALYZE celery_outbox")
    opened_backend.add(2, options="x" * 300)
    opened_backend.add(18, due_in=3600, options="x" * 300)
    for _ in range(13):
        opened_backend.execute(
            f"INSERT INTO celery_outbox ({COLUMNS}) SELECT {COLUMNS} FROM celery_outbox"
        )
    opened_backend.execute(
        "INSERT INTO celery_outbox_dead_letter"
        " (task_id, task_name, args, kwargs, options, created_at, retries, schema_version, dead_at,"
        " failure_reason) SELECT task_id, task_name, args, kwargs, options, created_at, 0, 1,"
        " created_at, 'no' FROM celery_outbox LIMIT 1000"
    )
    yield opened_backend
    opened_backend.clear()


@pytest.fixture
def database(full):
    return full


def nodes(plan):
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def start(database):
    """Where a claim begins that follows another one; SQLite needs none of that."""
    position = {"postgresql": PostgreSQL.position, "mysql": "due_at"}.get(database.vendor)
    if position is None:
        return None
    due = database.execute(f"SELECT {position} FROM celery_outbox ORDER BY due_at LIMIT 1")[0][0]
    return Start(due, due)


def test_a_store_at_work_never_reads_the_whole_table(database):
    """What PostgreSQL itself counted, for everything that runs per batch."""
    if database.vendor != "postgresql":
        pytest.skip("only PostgreSQL counts its scans by table")
    counters = "SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE relname = 'celery_outbox'"
    before = database.execute(counters)[0]
    store = database.store()
    claimed = store.claim(LIMIT, 300, "me")
    store.begin_attempt(claimed[0], "me")
    store.renew([message.id for message in claimed], 300, "me")
    store.release([message.id for message in claimed], "me")
    store.send_now(["no-such-id"])
    store.cancel(["no-such-id"])
    store.close()
    after = wait_for(lambda: (row := database.execute(counters)[0])[1] > before[1] and row)
    assert after[0] == before[0]


@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize("watermark", [False, True])
@pytest.mark.parametrize("adopt", [False, True])
@pytest.mark.parametrize("orphans", [True, False])
def test_a_claim_reads_one_index_range_and_sorts_nothing(
    database, analysed, watermark, adopt, orphans
):
    check = {"postgresql": _postgresql, "mysql": _mysql, "sqlite": _sqlite}[database.vendor]
    if analysed:
        database.execute(
            {
                "postgresql": "ANALYZE celery_outbox",
                "sqlite": "ANALYZE",
                "mysql": "ANALYZE TABLE celery_outbox",
            }[database.vendor]
        )
    request = ClaimRequest(LIMIT, 300, "me", 16 * 1024 * 1024, adopt, orphans)
    check(database, request, start(database) if watermark else None)


def _postgresql(database, request, start):
    sql, params = PostgreSQL().claim_statement(request, start)
    with connections[database.alias].cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(FOR_TRANSACTION)
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
        answer = cursor.fetchone()[0]
        cursor.execute("ROLLBACK")
    plan = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    kinds = {node["Node Type"] for node in nodes(plan)}
    assert not kinds & {"Seq Scan", "Sort", "Bitmap Heap Scan", "Hash Join"}, kinds
    (scan,) = (n for n in nodes(plan) if n.get("Index Name") == "celery_outbox_due")
    assert "due_at <= statement_timestamp()" in scan["Index Cond"]
    assert ("due_at >= " in scan["Index Cond"]) is (start is not None)
    assert scan["Actual Rows"] == LIMIT
    assert scan.get("Rows Removed by Filter", 0) == 0


def _mysql(database, request, start):
    sql, params = MySQL().claim_statement(request, start)
    ((*_, kind, _, key, _, _, _, extra),) = database.execute(f"EXPLAIN {sql}", *params)
    assert (kind, key) == ("range", "celery_outbox_due")
    assert "filesort" not in extra
    assert "temporary" not in extra


def _sqlite(database, request, start):
    sql, params = SQLite().claim_statement(request, start)
    steps = [step[-1] for step in database.execute(f"EXPLAIN QUERY PLAN {sql}", *params)]
    assert any(re.search(r"INDEX celery_outbox_due \(.*due_at<\?", step) for step in steps), steps
    assert not any("B-TREE FOR ORDER" in step for step in steps), steps
    assert not any(step.startswith("SCAN celery_outbox") for step in steps), steps


def test_the_next_due_time_is_one_row_of_an_index(database):
    """Of 147,456 rows that are not due yet."""
    sql, since = next_due_statement(DIALECTS[database.vendor]()), -0.01
    if database.vendor == "postgresql":
        answer = database.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", since)[0][0]
        plan = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
        (scan,) = (n for n in nodes(plan) if n.get("Index Name") == "celery_outbox_due")
        assert "due_at > (statement_timestamp() + " in scan["Index Cond"]
        assert (scan["Actual Rows"], scan.get("Rows Removed by Filter", 0)) == (1, 0)
    elif database.vendor == "mysql":
        ((*_, kind, _, key, _, _, _, extra),) = database.execute(f"EXPLAIN {sql}", since)
        assert (kind, key) == ("range", "celery_outbox_due")
        assert "filesort" not in extra
    else:
        ((*_, step),) = database.execute(f"EXPLAIN QUERY PLAN {sql}", since)
        assert re.search(r"INDEX celery_outbox_due \(due_at>\?", step), step


def test_a_row_is_found_by_its_key_in_the_index_of_keys(database):
    """Among rows without keys, in a table whose statistics know of none."""
    statements = []
    connection = connections[database.alias]

    def note(execute, sql, params, *rest):
        if sql.startswith(("SELECT outbox_key", "UPDATE")):
            statements.append((sql, params))
        return execute(sql, params, *rest)

    row = Row("id", "tests.task", "[]", "{}", "{}", *[None] * 6)
    for task_id in ("first", "second"):
        key = Key("key#digest", True, SimpleNamespace(id=task_id))
        keyed = row._replace(task_id=task_id, key=key)
        with connection.execute_wrapper(note):
            store_keyed(connection, [keyed], partial(insert, connection))
    assert len(statements) >= 2
    explain = {"postgresql": "EXPLAIN", "mysql": "EXPLAIN", "sqlite": "EXPLAIN QUERY PLAN"}
    for sql, params in statements:
        plan = str(database.execute(f"{explain[database.vendor]} {sql}", *params))
        assert "celery_outbox_key" in plan, (sql, plan)
        assert not re.search("Seq Scan|SCAN celery_outbox", plan), (sql, plan)
    database.execute("DELETE FROM celery_outbox WHERE outbox_key IS NOT NULL")


def test_counts_stop_at_their_cap(database):
    stats, sample = database.store().stats(), database.store().sample()
    assert stats.capped is True
    assert stats.in_outbox >= 100_000
    assert sample.depth >= 10_000
    assert sample.dead_letters == 1000


def test_beyond_the_caps_what_is_scheduled_is_no_backlog(database, monkeypatch):
    """16,384 rows are due and 147,456 are not: more than the caps of both here."""
    monkeypatch.setattr("django_integration.store.stats.STATS_CAP", 5_000)
    monkeypatch.setattr("django_integration.store.stats.SAMPLE_CAP", 5_000)
    if database.vendor == "postgresql":
        database.execute("ANALYZE celery_outbox")
    stats, depth = database.store().stats(), database.store().sample().depth
    assert stats.capped is True
    if database.vendor == "postgresql":  # its planner has an estimate of each
        assert (stats.waiting, depth) == pytest.approx((16_384, 16_384), rel=0.2)
        assert stats.scheduled == pytest.approx(147_456, rel=0.2)
    else:
        assert (stats.waiting, stats.scheduled, depth) == (5_000, 5_000, 5_000)
