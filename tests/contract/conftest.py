"""One suite, every store: the fixture `backend` runs a test on each of them.

Which ones: OUTBOX_CONTRACT_BACKENDS, separated by commas. psycopg2 and PyMySQL need a process of
their own, see `drivers.py` and `test_drivers.py`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

CHOSEN = os.environ.get("OUTBOX_CONTRACT_BACKENDS", "memory,psycopg,mysqlclient,sqlite").split(",")
DATABASES = [name for name in CHOSEN if name != "memory"]
POSTGRESQL = [name for name in CHOSEN if name.startswith("psycopg")]


@pytest.fixture(scope="module")
def opened_backend(
    request: pytest.FixtureRequest, django_db_blocker: Any, tmp_path_factory: Any
) -> Iterator[Any]:
    from tests.contract import backends

    with (
        django_db_blocker.unblock(),
        backends.opened(request.param, tmp_path_factory.mktemp(request.param)) as backend,
    ):
        yield backend


@pytest.fixture
def backend(opened_backend: Any) -> Iterator[Any]:
    """A store of some kind, empty, with the handles that a test needs."""
    opened_backend.clear()
    yield opened_backend
    opened_backend.clear()


@pytest.fixture
def database(backend: Any) -> Any:
    """As `backend`, but only the real databases."""
    return backend


@pytest.fixture
def postgresql(backend: Any) -> Any:
    """As `backend`, but only PostgreSQL."""
    return backend


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    choices = (("postgresql", POSTGRESQL), ("database", DATABASES), ("backend", CHOSEN))
    for fixture, names in choices:
        if fixture in metafunc.fixturenames and "opened_backend" in metafunc.fixturenames:
            metafunc.parametrize("opened_backend", names, indirect=True, scope="module")
            return
