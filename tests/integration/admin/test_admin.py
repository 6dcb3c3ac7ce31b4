"""The admin's cases, in pytest processes of their own, because Django has one project.

The cases need the admin in INSTALLED_APPS and a database of their own; see `settings.py`. To run
one directly: `pytest --ds=tests.integration.admin.settings tests/integration/admin/cases/pages.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import helpers

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.mark.parametrize("vendor", ["postgresql", "mysql", "sqlite"])
def test_pages(vendor: str) -> None:
    if vendor != "sqlite":
        helpers.require_service(vendor)
    run_cases(["pages.py", "message_page.py", "deliveries.py", "several_databases.py"], vendor)


@pytest.mark.postgresql
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cases", ["million.py", "million_held.py", "many_deliveries.py"])
def test_many_rows(cases: str) -> None:
    run_cases([cases], "postgresql")


@pytest.mark.postgresql
@pytest.mark.timeout(400)
def test_browser() -> None:
    helpers.require_program("chromium")
    helpers.require_program("chromedriver")
    if find_spec("selenium") is None and not os.environ.get("CI"):
        pytest.skip("selenium is not installed")
    run_cases(["browser.py"], "postgresql")


def test_settings_that_no_module_holds_are_read() -> None:
    """As of a project in one file: Celery can't list such settings, only look them up."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_FILE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "['events']\n", done.stderr[-2000:]


ONE_FILE = """
import django
from django.conf import settings

settings.configure(
    SECRET_KEY="x",
    INSTALLED_APPS=[
        "django.contrib.contenttypes", "django.contrib.auth", "django.contrib.admin",
        "django.contrib.messages", "django_integration",
    ],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    CELERY_OUTBOX_DESTINATIONS={"events": {"url": "redis://127.0.0.1:1"}},
)

from django_integration import OutboxCelery

app = OutboxCelery("one")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.set_default()
django.setup()

from django_integration.admin import configuration

print(list(configuration.destinations()))
"""


def run_cases(names: list[str], vendor: str) -> None:
    """Run files of cases in one process; what it printed is the failure's text."""
    __tracebackhide__ = True
    environment = {**os.environ, "OUTBOX_ADMIN_DB": vendor}
    environment.pop("OUTBOX_TEST_REPORT", None)  # the report is this process's own
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
        "--ds=tests.integration.admin.settings", *(str(HERE / "cases" / name) for name in names),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.fail(
            f"{', '.join(names)} on {vendor}:\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}", False
        )
