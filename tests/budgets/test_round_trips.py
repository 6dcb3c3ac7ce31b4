"""How often the relay waits for the network: a fixed few times per batch, whatever its size."""

from __future__ import annotations

import pytest
from django.db import connections

from tests.budgets.conftest import enqueue, needs_batches
from tests.harness.databases import installed, redis_url
from tests.harness.proxy import Wiretap
from tests.helpers import require_service

PUBLISH = b"\x00\x3c\x00\x28"
"""Class 60, method 40: Basic.Publish, as it stands in the stream."""
BATCH = 500

pytestmark = [pytest.mark.rabbitmq, pytest.mark.usefixtures("postgresql")]


def tapped(name):
    service = require_service(name)
    return Wiretap(service.host, service.port)


def run_batch(relay, app, count=BATCH):
    enqueue(app, count)
    return relay.run_once()


@pytest.mark.postgresql
@pytest.mark.parametrize("count", [50, BATCH])
def test_a_batch_waits_for_postgresql_twice(app, relay_of, count):
    with tapped("postgresql") as tap:
        through = {**connections.settings["default"], "HOST": "127.0.0.1", "PORT": str(tap.port)}
        with installed("default", through):
            relay = relay_of(app)
            run_batch(relay, app)
            enqueue(app, count)
            connections["default"].close()
            with tap.turns() as turns:
                assert relay.run_once().published == count
            relay.close()
    assert turns.count <= 3  # claim, settle, and now and then a claim from the very beginning


def test_a_batch_is_written_to_rabbitmq_before_its_first_confirm_is_needed(make_app, relay_of):
    with tapped("rabbitmq") as tap:
        app = make_app(through=tap.port)
        relay = relay_of(app, send_timeout=20)
        run_batch(relay, app)  # connects, declares, and proves that this size is welcome
        enqueue(app, BATCH)
        tap.withhold_until(lambda heard: heard.count(PUBLISH) >= BATCH)
        result = relay.run_once()
    assert result.published == BATCH


@pytest.mark.redis
@needs_batches
def test_a_batch_waits_for_redis_as_often_as_a_small_one(make_app, relay_of):
    with tapped("redis") as tap:
        app = make_app(redis_url(10), through=tap.port)
        relay = relay_of(app)
        run_batch(relay, app, 10)
        counts = []
        for size in (10, BATCH):
            enqueue(app, size)
            with tap.turns() as turns:
                assert relay.run_once().published == size
            counts.append(turns.count)
    assert counts[1] <= counts[0] <= 3
