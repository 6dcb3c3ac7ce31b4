"""Fixtures for suites that need Django with real databases; imported by their conftest.py."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_integration.schema import TABLES
from tests.harness.databases import Databases, installed
from tests.helpers import require_service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def databases(
    tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any
) -> Iterator[Databases]:
    """Real databases, one per vendor, created on first use."""
    found = Databases(tmp_path_factory.mktemp("databases"))
    with django_db_blocker.unblock():
        yield found
        found.drop_all()


@pytest.fixture
def use_database(databases: Databases, django_db_blocker: Any) -> Iterator[Callable[..., None]]:
    """`use_database("mysql", alias="orders")` for the length of a test; emptied afterwards."""
    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())

        def use(vendor: str, alias: str = "default", name: str = "outbox") -> None:
            if vendor != "sqlite":
                require_service(vendor)
            stack.enter_context(installed(alias, databases.get(vendor, name)))
            stack.callback(_empty, alias)

        yield use


@pytest.fixture
def postgresql(use_database: Callable[..., None]) -> None:
    """The default database is PostgreSQL."""
    use_database("postgresql")


def _empty(alias: str) -> None:
    connections[alias].close()
    with connections[alias].cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"DELETE FROM {table}")
