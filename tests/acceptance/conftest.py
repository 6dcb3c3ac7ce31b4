"""Databases, brokers and stages for the acceptance tests.

The shared servers on their usual ports serve everything that leaves them in peace; what a test
stops, starves or restarts is private and its own.
"""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import connections

from tests import helpers
from tests.acceptance.processes import PrivateServer
from tests.acceptance.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.services import Service

LEDGER_DB = 12
RUN = f"{os.getpid()}_{uuid.uuid4().hex[:6]}"
ADMIN = {"postgres": "postgres", "mysql": "mysql"}


@pytest.fixture(autouse=True)
def _database_access(django_db_blocker: Any) -> Iterator[None]:
    """These tests commit for real, on databases of their own."""
    with django_db_blocker.unblock():
        yield


class Databases:
    """Databases of this run, made on demand and dropped at its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._made: dict[str, tuple[Service, str]] = {}

    def make(self, kind: str, *, service: Service | None = None, suffix: str = "") -> str:
        """A Django alias of a migrated database of this kind."""
        alias = f"acceptance_{kind}{suffix}"
        if alias in self._made or alias in connections.settings:
            return alias
        if kind == "sqlite":
            _register(
                alias, "sqlite3", str(self._path / f"{alias}.sqlite3"), OPTIONS={"timeout": 20}
            )
        else:
            service = service or helpers.require_service(kind)
            self._made[alias] = (service, f"{alias}_{RUN}")
            self._create(alias)
        call_command("migrate", "celery_outbox", database=alias, verbosity=0)
        return alias

    def drop_all(self) -> None:
        for alias, (service, name) in self._made.items():
            connections[alias].close()
            if service.pids:
                continue  # a private server, which goes with all its data
            with connections[self._admin(service)].cursor() as cursor:
                force = " WITH (FORCE)" if service.name == "postgres" else ""
                cursor.execute(f"DROP DATABASE IF EXISTS {name}{force}")
        connections.close_all()

    def _create(self, alias: str) -> None:
        service, name = self._made[alias]
        with connections[self._admin(service)].cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        _register_server(alias, service, name)

    def _admin(self, service: Service) -> str:
        alias = f"admin_{service.name}_{service.port}"
        if alias not in connections.settings:
            _register_server(alias, service, ADMIN[service.name])
        return alias


def _register_server(alias: str, service: Service, name: str) -> None:
    user = os.environ.get("PGUSER", "postgres") if service.name == "postgres" else "root"
    engine = "postgresql" if service.name == "postgres" else "mysql"
    options = {} if engine == "postgresql" else {"charset": "utf8mb4"}
    where = {"HOST": service.host, "PORT": str(service.port), "USER": user, "OPTIONS": options}
    _register(alias, engine, name, **where)


def _register(alias: str, engine: str, name: str, **more: Any) -> None:
    settings = {"ENGINE": f"django.db.backends.{engine}", "NAME": name, "PASSWORD": "", **more}
    complete = connections.configure_settings({"default": {}, alias: settings})
    connections.settings[alias] = complete[alias]


@pytest.fixture(scope="session")
def databases(
    tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any
) -> Iterator[Databases]:
    made = Databases(tmp_path_factory.mktemp("databases"))
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
def stage_with(tmp_path: Path, databases: Databases) -> Iterator[Callable[..., Stage]]:
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
