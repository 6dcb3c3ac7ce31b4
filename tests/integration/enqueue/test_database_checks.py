"""`manage.py check --database`: what a relay could not work with, before a relay finds out."""

from __future__ import annotations

import io
import os
import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, connections
from django.test.utils import override_settings

from django_integration.checks import check_databases
from tests.contract.test_listen import pgbouncer
from tests.harness.databases import installed
from tests.helpers import wait_for
from tests.proj.current import current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[3]
VENDORS = [
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mysql", marks=pytest.mark.mysql),
    "sqlite",
]


@contextmanager
def as_project(app: Any) -> Iterator[None]:
    """Let it be the app of the project."""
    with (
        patch("tests.proj.celery.app", app),
        override_settings(CELERY_OUTBOX_APP="tests.proj.celery.app"),
        current(app),
    ):
        yield


def found(app: Any, *databases: str) -> list[str]:
    with as_project(app):
        return [message.id for message in check_databases(databases=databases)]


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_migrated_database_is_fine(
    vendor: str, app: Any, use_database: Callable[..., None]
) -> None:
    use_database(vendor)
    assert found(app, "default") == []


def test_the_command_runs_them(app: Any, use_database: Callable[..., None]) -> None:
    use_database("sqlite")
    out = io.StringIO()
    with as_project(app):
        call_command("check", "--tag", "celery_outbox", "--database", "default", stdout=out)
    assert "no issues" in out.getvalue()


def test_unapplied_migrations_are_reported(app: Any, use_database: Callable[..., None]) -> None:
    use_database("sqlite")
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'celery_outbox'")
    try:
        assert found(app, "default") == ["celery_outbox.W001"]
    finally:
        call_command("migrate", "celery_outbox", fake=True, verbosity=0)


def test_a_missing_table_is_reported(app: Any, use_database: Callable[..., None]) -> None:
    use_database("sqlite", name="incomplete")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE celery_outbox_dead_letter RENAME TO elsewhere")
    try:
        assert found(app, "default") == ["celery_outbox.W002"]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO celery_outbox_dead_letter")


def test_only_databases_with_an_outbox_are_looked_at(
    make_app: Callable[..., Any], use_database: Callable[..., None]
) -> None:
    use_database("sqlite")
    use_database("sqlite", alias="orders", name="orders")
    with connections["default"].cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'celery_outbox'")
    try:
        app = make_app(outbox_databases=["orders"])
        assert found(app, "default", "orders") == []
    finally:
        call_command("migrate", "celery_outbox", fake=True, verbosity=0)


@pytest.mark.postgresql
def test_a_pooler_is_reported(
    app: Any, make_app: Callable[..., Any], use_database: Callable[..., None], tmp_path: Path
) -> None:
    use_database("postgresql")
    direct = connection.settings_dict
    with pgbouncer(direct, tmp_path) as port:
        pooled = {**direct, "HOST": "127.0.0.1", "PORT": str(port)}
        with installed("default", pooled):
            wait_for(_answers)
            assert found(app, "default") == ["celery_outbox.W003"]
            assert found(make_app(outbox_notify=False), "default") == []


def _answers() -> bool:
    try:
        connection.ensure_connection()
    except OperationalError:
        return False
    return True


def manage(tmp_path: Path, *arguments: str, settings: str = "") -> str:
    """`manage.py <arguments>` of a project on an empty SQLite database; what it says."""
    lines = ["from tests.proj.settings import *", settings]
    (tmp_path / "fresh.py").write_text("\n".join(lines))
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "fresh",
        "OUTBOX_TEST_DB": "sqlite",
        "OUTBOX_TEST_DB_NAME": str(tmp_path / "fresh.sqlite3"),
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
    }
    command = [sys.executable, "-m", "django", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_migrate_does_not_ask_to_run_migrate(tmp_path: Path) -> None:
    assert "celery_outbox.W001" in manage(tmp_path, "check", "--database", "default")
    said = manage(tmp_path, "migrate")
    assert "Applying celery_outbox.0001_initial" in said
    assert "celery_outbox.W001" not in said


@pytest.mark.parametrize("arguments", [["check", "--database", "default"], ["migrate"]])
def test_a_wrong_app_is_an_error_of_the_checks_and_no_traceback(
    arguments: list[str], tmp_path: Path
) -> None:
    said = manage(tmp_path, *arguments, settings='CELERY_OUTBOX_APP = "no.such.app"')
    assert "(celery_outbox.E003) CELERY_OUTBOX_APP = 'no.such.app' can't be imported" in said
    assert "Traceback" not in said


def test_check_finds_the_tasks_with_once_of_every_app_and_other_commands_import_none(
    tmp_path: Path,
) -> None:
    for name in ("broken", "shop"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "broken" / "tasks.py").write_text("import no.such.module\n")
    (tmp_path / "shop" / "tasks.py").write_text(
        "from celery import shared_task\nfrom django_integration import once\n"
        'print("imported")\n@shared_task\n@once\ndef charge(): ...\n'
    )
    settings = 'INSTALLED_APPS += ["broken", "shop"]'
    said = manage(tmp_path, "check", settings=settings)
    assert "(celery_outbox.W004) shop.tasks.charge has @once" in said
    assert "imported" not in manage(tmp_path, "migrate", settings=settings)


def test_migrate_stops_before_a_table_of_another_package(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "fresh.sqlite3") as database:
        database.execute("CREATE TABLE celery_outbox (id integer, retry_after text)")
    said = manage(tmp_path, "migrate")
    assert "(celery_outbox.E009) Database 'default' has a table celery_outbox of another" in said
    assert "migrate django_celery_outbox zero" in said
    assert "Applying" not in said
    with sqlite3.connect(tmp_path / "fresh.sqlite3") as database:
        database.execute("DROP TABLE celery_outbox")
    assert "Applying celery_outbox.0001_initial" in manage(tmp_path, "migrate")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("", "they use the app 'default', no OutboxCelery"),
        ('CELERY_OUTBOX_APP = "shop_app.app"', "nothing imports the app of CELERY_OUTBOX_APP"),
        ("import shop_app", None),
        ('import shop_app\nCELERY_OUTBOX_APP = "shop_app.app"', None),
    ],
    ids=["no app", "an app that only the setting names", "an app", "an app, and the setting"],
)
def test_a_project_that_does_not_import_its_app_is_told(
    settings: str, why: str | None, tmp_path: Path
) -> None:
    (tmp_path / "shop_app.py").write_text(
        "from django_integration import OutboxCelery\napp = OutboxCelery('shop')\n"
    )
    said = manage(tmp_path, "check", settings=settings)
    if why is None:
        assert "no issues" in said
    else:
        assert f"(celery_outbox.W006) Calls of @shared_task bypass the outbox: {why}." in said
        assert "from proj.celery import app as celery_app" in said
