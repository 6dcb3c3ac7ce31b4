"""A million held rows in PostgreSQL: the pages stay as cheap, and the charts say where they end.

The rows are due in the next 30 days, one every few seconds. Some others back off, and are due soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.urls import reverse

from django_integration.admin.charts import BAR, ROWS_READ
from tests.integration.admin.cases.conftest import OUTBOX, client_of, person
from tests.integration.admin.cases.million import CONTENT, ROWS, SHARED, reads_are_bounded

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS_APART = 2.5
FAILING = 20_000
"""More than a list pages through."""


@pytest.fixture(scope="module", autouse=True)
def held(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Never analysed, as after a burst of arrivals."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("ALTER TABLE celery_outbox SET (autovacuum_enabled = off)")
        wanted = "now() + n * %s * interval '1 second'"
        cursor.execute(
            f"INSERT INTO celery_outbox ({SHARED}, eta, due_at)"
            f" SELECT {CONTENT}, 0, 1, {wanted}, {wanted} FROM generate_series(1, %s) AS n",
            [ROWS, SECONDS_APART, SECONDS_APART, ROWS],
        )
        cursor.execute(
            f"INSERT INTO celery_outbox ({SHARED}, due_at, last_error, updated_at)"
            f" SELECT {CONTENT}, 1, 1, now() + interval '10 minutes', 'NotFound', now()"
            " FROM generate_series(1, %s) AS n",
            [FAILING, FAILING],
        )
        try:
            yield
        finally:
            cursor.execute("TRUNCATE celery_outbox")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "query",
    [
        {},
        {"state": "scheduled"},
        {"state": "scheduled", "task_name": "no.such.task"},
        {"state": "failing"},
        {"state": "backing_off"},
        {"state": "in_flight"},
    ],
    ids=lambda query: " ".join(query.values()) or "all",
)
def test_every_statement_reads_a_bounded_number_of_rows(query: dict[str, str]) -> None:
    reads_are_bounded(OUTBOX, query, set())


@pytest.mark.django_db
def test_failing_rows_are_seen_in_front_of_what_is_scheduled() -> None:
    response = client_of(person(superuser=True)).get(reverse(OUTBOX), {"state": "failing"})
    assert {row.state for row in response.context["cl"].result_list} == {"backing_off"}
    tiles = {tile.name: tile.value for tile in response.context["summary"].tiles}
    assert tiles["Failing"] == f"{FAILING:,}+"


@pytest.mark.django_db
def test_the_charts_shade_what_is_behind_the_rows_that_were_read() -> None:
    response = client_of(person(superuser=True)).get(reverse(OUTBOX))
    hour, _, week = response.context["summary"].panels[-1].charts
    assert hour.total == pytest.approx(3600 / SECONDS_APART, abs=120)
    assert hour.unknown == 0
    assert week.total == ROWS_READ - FAILING
    days_read = week.total * SECONDS_APART / 86400
    assert week.unknown_x == pytest.approx(days_read * BAR, abs=0.2)
