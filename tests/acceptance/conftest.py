"""Databases, brokers and stages for the acceptance tests.

The shared servers on their usual ports serve everything that leaves them in peace; what a test
stops, starves or restarts is private and its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from tests import helpers
from tests.acceptance.stage import Stage
from tests.harness.databases import Databases
from tests.harness.servers import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.services import Service

LEDGER_DB = 12


@pytest.fixture(autouse=True)
def _database_access(django_db_blocker: Any) -> Iterator[None]:
    """These tests commit for real, on databases of their own."""
    with django_db_blocker.unblock():
        yield


class AliasedDatabases(Databases):
    """Databases of this run, each under an alias that Django keeps until the run ends."""

    def make(self, kind: str, *, service: Service | None = None, suffix: str = "") -> str:
        """A Django alias of a migrated database of this kind."""
        alias = f"acceptance_{kind}{suffix}"
        if alias not in connections.settings:
            if service is None and kind != "sqlite":
                service = helpers.require_service(kind)
            connections.settings[alias] = self.get(kind, alias, service=service)
        return alias

    def drop_all(self) -> None:
        connections.close_all()
        super().drop_all()


@pytest.fixture(scope="session")
def databases(
    tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any
) -> Iterator[AliasedDatabases]:
    made = AliasedDatabases(tmp_path_factory.mktemp("databases"))
    yield made
    with django_db_blocker.unblock():
        made.drop_all()


@pytest.fixture(scope="session")
def private_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], PrivateServer]]:
    """`private_server("rabbitmq")`: one server of each kind per run, which tests may mistreat.

    Who stops it starts it again.
    """
    servers: dict[str, PrivateServer] = {}

    def get(name: str) -> PrivateServer:
        if name not in servers:
            servers[name] = PrivateServer(name, tmp_path_factory.mktemp(name))
        return servers[name]

    yield get
    for server in servers.values():
        server.teardown()


@pytest.fixture
def stage_with(tmp_path: Path, databases: AliasedDatabases) -> Iterator[Callable[..., Stage]]:
    """`stage_with("postgres", "rabbitmq", **settings)`, on the shared servers by default."""
    stages: list[Stage] = []

    def build(
        database: str = "postgres",
        broker: str = "rabbitmq",
        *,
        aliases: dict[str, str] | None = None,
        **settings: Any,
    ) -> Stage:
        url = broker if "://" in broker else helpers.require_service(broker).url
        ledger = helpers.require_service("redis")
        stage = Stage(
            path=tmp_path,
            broker=url,
            aliases=aliases or {"default": databases.make(database)},
            ledger=f"redis://{ledger.host}:{ledger.port}/{LEDGER_DB}",
            settings=settings,
        )
        stages.append(stage)
        return stage

    yield build
    for stage in stages:
        stage.close()


@pytest.fixture
def stage(stage_with: Callable[..., Stage]) -> Stage:
    """PostgreSQL and RabbitMQ."""
    return stage_with()
