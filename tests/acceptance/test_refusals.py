"""A worker that could not relay does not start, and says in one line why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.acceptance.conftest import Databases
    from tests.acceptance.stage import Stage


def one_error(output: str) -> str:
    """The one line with the error."""
    lines = [line for line in output.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, output
    return lines[0]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--outbox-store=nowhere.to:be_found"], ["CELERY_OUTBOX_STORE", "nowhere"]),
        (["--outbox-batch-size=0"], ["--outbox-batch-size must be a whole number"]),
        (["--outbox-idle-time=soon"], ["--outbox-idle-time", "'soon' is not a valid float"]),
        (["--outbox-stale-timeout=5"], ["CELERY_OUTBOX_STALE_TIMEOUT (5 s) must be longer than"]),
    ],
    ids=["store", "value", "type", "lease"],
)
def test_flags_that_can_not_work(flags: list[str], words: list[str], stage: Stage) -> None:
    error = one_error(stage.refused(*flags))
    assert all(word in error for word in words), error


def test_a_misspelled_setting(stage_with: Callable[..., Stage]) -> None:
    error = one_error(stage_with(CELERY_OUTBOX_BATCHSIZE=10).refused())
    assert "Did you mean CELERY_OUTBOX_BATCH_SIZE?" in error


def test_a_setting_that_only_calls_read(stage_with: Callable[..., Stage]) -> None:
    error = one_error(stage_with(CELERY_OUTBOX_REQUIRE_TRANSACTION="yes").refused())
    assert "CELERY_OUTBOX_REQUIRE_TRANSACTION must be True or False, not 'yes'." in error


def test_app_without_the_step(stage: Stage) -> None:
    output = stage.refused(app="tests.acceptance.project.no_step")
    assert "--outbox-relay needs the relay's bootstep" in one_error(output)
    assert "app.steps['worker'].add(OutboxRelayStep)" in output


def test_tables_that_are_not_migrated(
    stage_with: Callable[..., Stage], databases: Databases
) -> None:
    stage = stage_with(aliases={"default": databases.make("postgres", suffix="_unmigrated")})
    try:
        stage.sql("ALTER TABLE celery_outbox RENAME TO celery_outbox_away")
        assert "manage.py migrate" in one_error(stage.refused())
    finally:
        stage.sql("ALTER TABLE celery_outbox_away RENAME TO celery_outbox")


def test_unknown_database(stage_with: Callable[..., Stage]) -> None:
    stage = stage_with(CELERY_OUTBOX_DATABASES=["default", "nowhere"])
    assert "'nowhere'" in one_error(stage.refused())


@pytest.mark.parametrize("driver", ["psycopg2", "mysqlclient"])
def test_gevent_with_a_driver_that_blocks(driver: str, stage_with: Callable[..., Stage]) -> None:
    stage = stage_with("mysql" if driver == "mysqlclient" else "postgres")
    stage.environment["ACCEPTANCE_PSYCOPG2"] = "1" * (driver == "psycopg2")
    error = one_error(stage.refused(pool="gevent"))
    assert "would block every greenlet" in error
    assert "psycopg 3 or PyMySQL" in error
