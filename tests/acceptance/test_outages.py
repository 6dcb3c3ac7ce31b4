"""Broker and database go away and come back: nothing is lost, and no retry is spent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from django.db import connections

from tests import helpers
from tests.acceptance.load import steady_load
from tests.harness.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.acceptance.conftest import Databases
    from tests.acceptance.stage import Stage
    from tests.harness.servers import PrivateServer
    from tests.harness.workers import Worker

PATIENCE = ("--outbox-send-timeout=2", "--outbox-broker-outage-cooldown=2")


def seconds_to_stop(worker: Worker) -> float:
    begin = time.monotonic()
    worker.stop()
    return time.monotonic() - begin


def test_broker_restart_under_load(
    stage_with: Callable[..., Stage], private_server: Callable[[str], PrivateServer]
) -> None:
    rabbit = private_server("rabbitmq")
    stage = stage_with(broker=f"amqp://guest:guest@127.0.0.1:{rabbit.port}//")
    worker = stage.worker(*PATIENCE)
    with steady_load(stage) as ids:
        helpers.wait_for(lambda: len(ids) > 100 and stage.rows() < 50, 20)
        rabbit.stop()
        helpers.wait_for(lambda: stage.rows("claimed_by IS NULL") > 200, 30)
        assert stage.rows("retries > 0") == 0
        rabbit.start()
        helpers.wait_for(lambda: stage.rows() < 50, 30, stage.logs)
    stage.wait_until_empty()
    # A message that RabbitMQ stored and could not confirm any more is sent again: at most a batch.
    arrived = stage.arrived()
    assert set(arrived) == set(ids)
    assert len(arrived) - len(ids) <= 500
    assert worker.lines("celery_outbox_publish_failed", "dead_letter") == []

    rabbit.stop()
    stage.send_parcels(10)
    worker.wait_for("Trying again in", times=1)
    took = seconds_to_stop(worker)
    rabbit.start()
    assert took < 20
    assert stage.rows("claimed_by IS NULL AND retries = 0") == 10


def test_database_restart_under_load(
    stage_with: Callable[..., Stage],
    databases: Databases,
    private_server: Callable[[str], PrivateServer],
) -> None:
    server = private_server("postgres")
    alias = databases.make("postgres", service=server.service, suffix="_private")
    stage = stage_with(aliases={"default": alias})
    worker = stage.worker()
    with steady_load(stage) as ids:
        helpers.wait_for(lambda: len(ids) > 100 and stage.rows() < 50, 20)
        server.stop()
        worker.wait_for("celery_outbox_relay_error")
        # The worker itself goes on: a task that needs no database runs meanwhile.
        stage.wait_until_ran([stage.send_directly()], 20)
        server.start()
        connections[alias].close()
        before = len(ids)
        worker.wait_for("celery_outbox_relay_recovered")
        helpers.wait_for(lambda: len(ids) > before + 50 and stage.rows() < 50, 30, stage.logs)
    stage.wait_until_empty()
    assert sorted(stage.arrived()) == sorted(ids)
    assert worker.lines("celery_outbox_publish_failed", "dead_letter", "Traceback") == []

    server.stop()
    took = seconds_to_stop(worker)
    server.start()
    connections[alias].close()
    assert took < 20


def test_a_worker_starts_while_the_database_is_away(
    stage_with: Callable[..., Stage],
    databases: Databases,
    private_server: Callable[[str], PrivateServer],
) -> None:
    server = private_server("postgres")
    alias = databases.make("postgres", service=server.service, suffix="_late")
    stage = stage_with(aliases={"default": alias})
    ids = stage.send_parcels(3)
    connections[alias].close()
    server.stop()
    worker = stage.worker()
    worker.wait_for("celery_outbox_relay_error")
    stage.wait_until_ran([stage.send_directly()], 20)
    server.start()
    stage.wait_until_empty()
    assert sorted(stage.arrived()) == sorted(ids)


def test_a_broker_that_stops_answering(stage: Stage) -> None:
    service = helpers.require_service("rabbitmq")
    with Proxy(service.host, service.port) as proxy:
        worker = stage.worker(*PATIENCE, settings=stage.behind(proxy.port))
        ids = stage.send_parcels(10)
        stage.wait_until_empty()
        proxy.stall()
        ids += stage.send_parcels(300)
        worker.wait_for("celery_outbox_broker_unavailable")
        assert stage.rows() == 300
        stage.wait_until_ran([stage.send_directly()], 20)
        proxy.resume()
        stage.wait_until_empty()
        assert worker.lines("celery_outbox_broker_recovered")
    assert set(stage.arrived()) == set(ids)
    assert worker.lines("publish_failed", "dead_letter", "relay_error") == []


def test_an_error_in_the_loop_stops_neither_worker_nor_relay(stage: Stage) -> None:
    worker = stage.worker()
    stage.sql("ALTER TABLE celery_outbox RENAME TO celery_outbox_away")
    try:
        worker.wait_for("celery_outbox_relay_error", times=2)
        stage.wait_until_ran([stage.send_directly()])
        assert stage.ask(worker, "outbox")["relays"][0]["state"] == "backing off after an error"
    finally:
        stage.sql("ALTER TABLE celery_outbox_away RENAME TO celery_outbox")
    stage.wait_until_ran(stage.enqueue(5))
    worker.wait_for("celery_outbox_relay_recovered")
    (relay,) = stage.ask(worker, "outbox")["relays"]
    assert relay["state"] == "relaying"
    assert relay["counters"]["errors"] >= 2
    assert "celery_outbox" in relay["last_error"]


@pytest.fixture(autouse=True)
def _own_connections() -> Iterator[None]:
    yield
    connections.close_all()
