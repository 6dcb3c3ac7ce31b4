"""One database, one private server of each kind; an app and a relay of its own for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from tests.poison.bench import Bench
from tests.poison.brokers import Broker, Files, Memory, Rabbit, RedisServer, private_server
from tests.proj.fixtures import databases, postgresql, use_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["databases", "postgresql", "use_database"]


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    server = private_server("rabbitmq", tmp_path_factory.mktemp("rabbitmq"))
    yield Rabbit(server)
    server.teardown()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = private_server("redis", tmp_path_factory.mktemp("redis"))
    yield RedisServer(server)
    server.teardown()


@pytest.fixture
def broker_named(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Broker]:
    """`broker_named("redis")`; a server is started for the first test that asks for it."""

    def get(name: str) -> Broker:
        if name == "filesystem":
            return Files(tmp_path)
        if name == "memory":
            return Memory()
        fixture = {"rabbitmq": "rabbit", "redis": "redis_server"}[name]
        broker: Broker = request.getfixturevalue(fixture)
        broker.clear()
        return broker

    return get


@pytest.fixture
def bench_on(
    postgresql: None, broker_named: Callable[[str], Broker]
) -> Iterator[Callable[..., Bench]]:
    """`bench_on("redis", batch_size=10)`: a relay that is running."""
    benches: list[Bench] = []
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE celery_outbox, celery_outbox_dead_letter")

    def build(broker: str | Broker, *, start: bool = True, **config: Any) -> Bench:
        if isinstance(broker, str):
            broker = broker_named(broker)
        benches.append(Bench(broker, **config))
        return benches[-1].start() if start else benches[-1]

    yield build
    for bench in benches:
        bench.stop()
