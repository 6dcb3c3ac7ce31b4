"""A million rows in PostgreSQL: every statement of the pages reads a bounded part of them.

EXPLAIN ANALYZE runs each captured statement again and tells how many rows its scans really read.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_integration.admin.paging import REACH, WINDOW
from django_integration.models import CeleryOutbox, CeleryOutboxDeadLetter
from tests.integration.admin.cases.conftest import (
    DEAD,
    OUTBOX,
    client_of,
    person,
    reads,
    sets_the_planner,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 1_000_000
DEAD_ROWS = 120_000
BOUND = WINDOW + 2
"""Rows that one statement may read: the window, and the one behind it."""
MOST_READS = 18
"""Statements of one page."""
TABLES = ("celery_outbox", "celery_outbox_dead_letter")
SHARED = "task_id, task_name, args, kwargs, options, created_at, retries, schema_version"
CONTENT = """
    md5(n::text), 'shop.tasks.task_' || n %% 20, '[1, 2]', '{"order": 7}',
    '{"exchange": "", "headers": {"id": "' || repeat('x', 500) || '"}}',
    now() - (%s - n) * interval '50 milliseconds'"""


@pytest.fixture(scope="module", autouse=True)
def million(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Seven in ten are due, three in ten back off after a failure, which no list shows first."""
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            for table in TABLES:
                cursor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            cursor.execute(
                f"INSERT INTO celery_outbox ({SHARED}, due_at, last_error, updated_at)"
                f" SELECT {CONTENT}, (n %% 10 >= 7)::int, 1,"
                " now() - (%s - n) * interval '50 milliseconds'"
                " + (n %% 10 >= 7)::int * interval '1 day',"
                " CASE WHEN n %% 10 >= 7 THEN 'NotFound: no exchange' END,"
                " CASE WHEN n %% 10 >= 7 THEN now() END"
                " FROM generate_series(1, %s) AS n",
                [ROWS, ROWS, ROWS],
            )
            cursor.execute(
                f"INSERT INTO celery_outbox_dead_letter ({SHARED}, dead_at, failure_reason, kind)"
                f" SELECT {CONTENT}, 5, 1, now() - (%s - n) * interval '50 milliseconds',"
                " 'NotFound: no exchange', CASE WHEN n < 100 THEN 'task' END"
                " FROM generate_series(1, %s) AS n",
                [DEAD_ROWS, DEAD_ROWS, DEAD_ROWS],
            )
        try:
            yield
        finally:
            with connection.cursor() as cursor:
                cursor.execute(f"TRUNCATE {', '.join(TABLES)}")


@pytest.fixture(scope="module", params=["never analysed", "analysed"])
def explained(request: Any, million: None, django_db_blocker: Any) -> set[str]:
    """What the planner knows: nothing at first, as after a burst of arrivals, and then all.

    Gives the statements that were looked at already: the summary's are the same on every page.
    """
    if request.param == "analysed":
        with django_db_blocker.unblock(), connection.cursor() as cursor:
            for table in TABLES:
                cursor.execute(f"ANALYZE {table}")
    return set()


def scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The nodes of a plan that read one of our tables."""
    if plan.get("Relation Name") in TABLES:
        yield plan
    for child in plan.get("Plans", ()):
        yield from scans(child)


def under_planner(captured: Any) -> Iterator[tuple[str, str]]:
    """Each SELECT, with the planner's settings that it ran under."""
    planner = ""
    for sql in (each["sql"] for each in captured):
        if sets_the_planner(sql):
            planner = sql
        elif sql.startswith("ROLLBACK"):
            planner = ""
        elif sql.startswith("SELECT"):
            yield sql, planner


def rows_read(sql: str, planner: str) -> tuple[float, dict[str, Any]]:
    with transaction.atomic(), connection.cursor() as cursor:
        if planner:
            cursor.execute(planner)
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}".replace("%", "%%"), [])
        found = cursor.fetchone()[0]
        transaction.set_rollback(True)
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    removed = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    return sum(
        (scan["Actual Rows"] + sum(scan.get(name, 0) for name in removed)) * scan["Actual Loops"]
        for scan in scans(plan)
    ), plan


def reads_are_bounded(page: str, query: dict[str, str], explained: set[str]) -> Any:
    """Open a page, and look at its statements, but for those that were looked at already."""
    client = client_of(person(superuser=True))
    with CaptureQueriesContext(connection) as captured:
        response = client.get(reverse(page), query)
    assert response.status_code == 200
    assert len(reads(captured)) <= MOST_READS
    for sql, planner in under_planner(captured):
        if sql in explained:
            continue
        explained.add(sql)
        read, plan = rows_read(sql, planner)
        assert read <= BOUND, (sql, json.dumps(plan, indent=1))
    return response


PAGES = {
    "all": (OUTBOX, {}),
    "last page": (OUTBOX, {"p": str(REACH // 50)}),
    "waiting": (OUTBOX, {"state": "waiting"}),
    "scheduled, and there are none": (OUTBOX, {"state": "scheduled"}),
    "in flight, and there are none": (OUTBOX, {"state": "in_flight"}),
    "backing off": (OUTBOX, {"state": "backing_off"}),
    "failing": (OUTBOX, {"state": "failing"}),
    "published, and there are none": (OUTBOX, {"state": "published"}),
    "task name": (OUTBOX, {"task_name": "shop.tasks.task_3"}),
    "task name that nothing has": (OUTBOX, {"task_name": "no.such.task"}),
    "failing and task name": (OUTBOX, {"state": "failing", "task_name": "no.such.task"}),
    "task id": (OUTBOX, {"q": "c4ca4238a0b923820dcc509a6f75849b"}),
    "a part of a name": (OUTBOX, {"q": "TASK_3"}),
    "a part of a name that nothing has": (OUTBOX, {"q": "no.such", "state": "failing"}),
    "dead letters": (DEAD, {}),
    "dead letters by task name": (DEAD, {"task_name": "no.such.task"}),
    "failed tasks": (DEAD, {"kind": "task"}),
    "messages of a task that nothing has": (DEAD, {"kind": "message", "task_name": "no.such.task"}),
    "dead letters by a part of a name": (DEAD, {"q": "no.such", "kind": "task"}),
    "dead letters by task id": (DEAD, {"q": "c4ca4238a0b923820dcc509a6f75849b"}),
}


@pytest.mark.django_db
@pytest.mark.parametrize("name", PAGES)
def test_every_statement_reads_a_bounded_number_of_rows(name: str, explained: set[str]) -> None:
    reads_are_bounded(*PAGES[name], explained)


@pytest.mark.django_db
def test_counts_are_estimates() -> None:
    response = client_of(person(superuser=True)).get(reverse(OUTBOX))
    listed = response.context["cl"]
    assert listed.result_count == REACH
    assert listed.paginator.total == pytest.approx(ROWS, rel=0.02)
    assert CeleryOutbox.objects.order_by("-id").first() == listed.result_list[0]
    depth = response.context["summary"].tiles[0].value
    assert depth.startswith("≈")
    assert int(depth[1:].strip().replace(",", "")) == pytest.approx(ROWS, rel=0.02)


@pytest.mark.django_db
def test_failing_rows_are_seen_behind_a_backlog() -> None:
    found = client_of(person(superuser=True)).get(reverse(OUTBOX)).context["summary"]
    tiles = {tile.name: tile.value for tile in found.tiles}
    assert tiles["Failing"] == "50,000+"
    assert found.tables.failing[0]["last_error"] == "NotFound: no exchange"


@pytest.mark.django_db
def test_an_action_on_all_takes_no_more_than_its_reach() -> None:
    client, url = client_of(person(superuser=True)), reverse(DEAD)
    first = CeleryOutboxDeadLetter.objects.order_by("-id").first()
    choice = {"action": "discard", "_selected_action": first.pk, "select_across": 1, "index": 0}
    asked = client.post(url, choice)
    answer = {"action": "discard", "_selected_action": first.pk, "ids": asked.context["ids"]}
    done = client.post(url, {**answer, "confirmed": "yes"}, follow=True)
    assert f"Discarded: {REACH:,}." in done.content.decode()
