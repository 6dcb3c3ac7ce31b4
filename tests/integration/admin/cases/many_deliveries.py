"""Many messages for destinations in PostgreSQL: every statement reads a bounded part of them.

More than the bound is enough to tell. One destination is away, with nearly all of them: many back
off or are held back by others. Another has a few. One key has thousands behind its first message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_integration.admin.order import MOST_BEHIND
from django_integration.models import CeleryOutboxDelivery
from django_integration.store.stats import SAMPLE_CAP
from tests.integration.admin.cases import million
from tests.integration.admin.cases.conftest import DEAD, DELIVERIES, client_of, person
from tests.integration.admin.cases.million import BOUND, CONTENT, SHARED, reads_are_bounded

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLES = ("celery_outbox_delivery", "celery_outbox_dead_letter")
DESTINATIONS = {
    "events": {"url": "memory://", "exchange": "domain"},
    "lake": {"url": "memory://", "exchange": "domain"},
}
ROWS = 3 * BOUND
LONG_KEY = 30_000
FEW = 20
DEAD_ROWS = 120_000


@pytest.fixture(scope="module", autouse=True)
def deliveries(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Of ten rows five are due, two back off and three are held back. Never analysed."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        columns = f"INSERT INTO celery_outbox_delivery ({SHARED}, destination, order_key, due_at)"
        cursor.execute(
            f"{columns} SELECT {CONTENT}, (n %% 10 >= 8)::int, 100, 'lake',"
            " CASE WHEN n %% 10 < 3 THEN 'key:' || n %% 1000 || '#' || md5((n %% 1000)::text) END,"
            " CASE WHEN n %% 10 < 3 AND n > 1000 THEN '9999-01-01Z'::timestamptz"
            " ELSE now() + (n - %s) * interval '50 milliseconds'"
            " + (n %% 10 >= 8)::int * interval '1 day' END"
            " FROM generate_series(1, %s) AS n",
            [ROWS, ROWS, ROWS],
        )
        cursor.execute(
            f"{columns} SELECT {CONTENT}, (n = 1)::int, 100, 'lake', 'long#key',"
            " CASE n WHEN 1 THEN now() ELSE '9999-01-01Z' END FROM generate_series(1, %s) AS n",
            [ROWS, LONG_KEY],
        )
        cursor.execute(
            f"{columns} SELECT {CONTENT}, 1, 100, 'events', NULL, now() + interval '1 minute'"
            " FROM generate_series(1, %s) AS n",
            [ROWS, FEW],
        )
        cursor.execute("UPDATE celery_outbox_delivery SET updated_at = now() WHERE retries > 0")
        cursor.execute(
            f"INSERT INTO celery_outbox_dead_letter ({SHARED}, destination, dead_at,"
            f" failure_reason) SELECT {CONTENT}, 1, 100, CASE WHEN n > 9 THEN 'lake' END, now(), ''"
            " FROM generate_series(1, %s) AS n",
            [DEAD_ROWS, DEAD_ROWS],
        )
        try:
            yield
        finally:
            cursor.execute(f"TRUNCATE {', '.join(TABLES)}")


@pytest.fixture(autouse=True)
def destinations(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.CELERY_OUTBOX_DESTINATIONS = DESTINATIONS
    monkeypatch.setattr(million, "TABLES", TABLES)
    monkeypatch.setattr(million, "MOST_READS", 34)  # the table of destinations, and its lanes


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("page", "query"),
    [
        (DELIVERIES, {}),
        (DELIVERIES, {"p": "200"}),
        (DELIVERIES, {"destination": "lake"}),
        (DELIVERIES, {"destination": "events"}),
        (DELIVERIES, {"destination": "lake", "p": "200"}),
        (DELIVERIES, {"destination": "no.such"}),
        (DELIVERIES, {"destination": "lake", "state": "held_back"}),
        (DELIVERIES, {"destination": "lake", "state": "failing"}),
        (DELIVERIES, {"destination": "lake", "state": "backing_off"}),
        (DELIVERIES, {"destination": "lake", "state": "in_flight", "task_name": "no.such"}),
        (DELIVERIES, {"destination": "lake", "task_name": "no.such"}),
        (DELIVERIES, {"destination": "lake", "q": "no.such"}),
        (DELIVERIES, {"destination": "lake", "state": "backing_off", "q": "TASK_9"}),
        (DELIVERIES, {"state": "waiting"}),
        (DELIVERIES, {"state": "held_back"}),
        (DELIVERIES, {"state": "backing_off"}),
        (DELIVERIES, {"state": "failing", "task_name": "no.such"}),
        (DELIVERIES, {"state": "published"}),
        (DELIVERIES, {"task_name": "no.such"}),
        (DELIVERIES, {"q": "c4ca4238a0b923820dcc509a6f75849b"}),
        (DEAD, {"destination": "events"}),
        (DEAD, {"destination": "-"}),
        (DEAD, {"destination": "lake", "task_name": "no.such"}),
    ],
    ids=str,
)
def test_every_statement_reads_a_bounded_number_of_rows(page: str, query: dict[str, str]) -> None:
    reads_are_bounded(page, query, _explained)


_explained: set[str] = set()


@pytest.mark.django_db
def test_a_destination_with_few_is_seen_beside_one_with_many() -> None:
    response = client_of(person(superuser=True)).get(reverse(DELIVERIES), {"state": "failing"})
    assert "events" in {row.destination for row in response.context["cl"].result_list}
    lines = {line.name: line for line in response.context["outbox_summary"]().lines}
    at_least = f"{SAMPLE_CAP:,}+"
    assert [number.text for number in lines["lake"].numbers[:2]] == [at_least] * 2
    assert lines["events"].numbers[2].text == f"{FEW}"


@pytest.mark.django_db
def test_a_page_and_a_confirmation_read_a_bounded_part_of_a_long_key() -> None:
    first = CeleryOutboxDelivery.objects.filter(order_key="long#key").earliest("pk")
    client = client_of(person(superuser=True))
    url = reverse(DELIVERIES)
    with CaptureQueriesContext(connection) as captured:
        asked = client.post(url, {"action": "discard", "_selected_action": first.pk, "index": 0})
        client.get(reverse("admin:celery_outbox_celeryoutboxdelivery_change", args=[first.pk + 9]))
    assert asked.context["behind"] == MOST_BEHIND
    for sql, planner in million.under_planner(captured):
        read, plan = million.rows_read(sql, planner)
        assert read <= MOST_BEHIND + 2, (sql, plan)
