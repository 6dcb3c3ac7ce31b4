"""The wheel holds both packages and what they read, and nothing of ours; the sdist builds it."""

from __future__ import annotations

import os
import tarfile
import zipfile
from importlib import metadata, util
from pathlib import Path

import pytest

DIST = os.environ.get("OUTBOX_DIST")
pytestmark = pytest.mark.skipif(DIST is None, reason="make package builds what this looks at")
PACKAGES = {"celery_outbox_steps", "django_integration"}


@pytest.fixture(scope="module")
def wheel() -> set[str]:
    (path,) = Path(str(DIST)).glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def sdist() -> set[str]:
    (path,) = Path(str(DIST)).glob("*.tar.gz")
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_the_wheel_holds_two_packages_and_nothing_else(wheel: set[str]) -> None:
    tops = {name.partition("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES


@pytest.mark.parametrize(
    "name",
    [
        "celery_outbox_steps/py.typed",
        "celery_outbox_steps/testing/contract/claiming.py",
        "django_integration/py.typed",
        "django_integration/migrations/0001_initial.py",
        "django_integration/management/commands/celery_outbox_stats.py",
        "django_integration/static/celery_outbox/admin.js",
        "django_integration/templates/admin/celery_outbox/change_list.html",
    ],
)
def test_the_wheel_holds(wheel: set[str], name: str) -> None:
    assert name in wheel


def test_no_test_and_no_cache_is_in_the_wheel(wheel: set[str]) -> None:
    unwanted = ("/tests/", "/test_", "conftest", "__pycache__", ".sqlite3")
    assert [name for name in wheel if any(each in f"/{name}" for each in unwanted)] == []


def test_the_wheel_comes_with_its_license(wheel: set[str]) -> None:
    assert any(name.endswith("/licenses/LICENSE") for name in wheel)


def test_the_sdist_holds_what_building_needs(sdist: set[str]) -> None:
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= sdist
    assert {name.partition("/")[0] for name in sdist} >= PACKAGES
    assert not any(name.startswith(("tests", ".venv", "docs")) for name in sdist)


def test_wheel_and_sdist_hold_the_same_packages(wheel: set[str], sdist: set[str]) -> None:
    def of_packages(names: set[str]) -> set[str]:
        return {name for name in names if name.split("/")[0] in PACKAGES and "." in name}

    assert of_packages(wheel) == of_packages(sdist)


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_what_is_imported_is_what_was_installed(package: str) -> None:
    spec = util.find_spec(package)
    assert spec is not None
    assert "site-packages" in str(spec.origin)


def test_entry_points_of_celery_and_pytest() -> None:
    found = metadata.distribution("celery-outbox-steps").entry_points
    assert {point.group for point in found} >= {"celery.commands", "pytest11"}
    for point in found:
        point.load()
