"""The endpoints of real workers, as curl sees them: at work, in an outage, paused, standing by,
stopping."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import helpers
from tests.acceptance.test_refusals import one_error
from tests.harness.http import Response, free_port, request

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.acceptance.stage import Stage
    from tests.harness.servers import PrivateServer

POOLS = ["prefork", "threads", "solo", "gevent"]


class Endpoints:
    """The three endpoints of one worker."""

    def __init__(self) -> None:
        self.port = free_port()
        self.flags = (f"--outbox-http={self.port}", "--outbox-metrics=prometheus")

    def get(self, path: str) -> Response:
        return request(self.port, path)

    def wait_for(self, path: str, status: int, words: str) -> None:
        helpers.wait_for(lambda: self.says(path, status, words), 30, lambda: str(self.get(path)))

    def says(self, path: str, status: int, words: str) -> bool:
        found = self.get(path)
        return found.status == status and words in found.text

    def metrics(self) -> dict[str, float]:
        """By name and labels. An empty label is none: that of the app's own broker."""
        found = self.get("/metrics")
        assert found.status == 200
        families = text_string_to_metric_families(found.text)
        return {
            " ".join([each.name, *filter(None, each.labels.values())]): each.value
            for family in families
            for each in family.samples
        }

    def wait_for_metrics(self, wanted: dict[str, float]) -> None:
        helpers.wait_for(
            lambda: wanted.items() <= self.metrics().items(), 20, lambda: str(self.metrics())
        )

    def relay_state(self) -> str:
        begin = "celery_outbox_relay_state default "
        found = [key for key, value in self.metrics().items() if key.startswith(begin) and value]
        return found[0].removeprefix(begin)


@pytest.mark.parametrize("pool", POOLS)
def test_at_work_paused_and_stopping(stage: Stage, pool: str) -> None:
    endpoints = Endpoints()
    worker = stage.worker(*endpoints.flags, "--outbox-sample-interval=0.2", pool=pool)
    assert worker.lines(f"outbox: http://127.0.0.1:{endpoints.port} has /livez")
    endpoints.wait_for("/readyz", 200, "default: relaying")
    assert endpoints.get("/livez").text == "alive\n"
    stage.wait_until_ran(stage.enqueue(3))
    stage.wait_until_empty()
    endpoints.wait_for_metrics(
        {
            "celery_outbox_messages_published_total default record": 3,
            "celery_outbox_publish_lag_seconds_count default": 3,
            "celery_outbox_broker_up default": 1,
            "celery_outbox_rows default waiting": 0,
        }
    )
    assert endpoints.relay_state() == "relaying"

    stage.tell(worker, "outbox_pause", reason="maintenance")
    endpoints.wait_for("/readyz", 503, "default: paused: maintenance")
    assert endpoints.get("/livez").status == 200
    assert endpoints.relay_state() == "paused"
    stage.tell(worker, "outbox_resume")
    endpoints.wait_for("/readyz", 200, "default: relaying")

    if pool == "prefork":  # the children must not keep the port of a worker that was killed
        worker.stop("SIGKILL")
        with pytest.raises(OSError, match=r"refused|reset"):
            endpoints.get("/livez")
        return
    assert worker.stop() == 0
    with pytest.raises(OSError, match="refused"):
        endpoints.get("/livez")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_that_stops_is_alive_and_not_ready_until_its_tasks_are_done(
    stage: Stage, pool: str
) -> None:
    endpoints = Endpoints()
    worker = stage.worker(*endpoints.flags, pool=pool)
    stage.enqueue(1, "enqueue_when_told", args=["last"])
    helpers.wait_for(lambda: stage.redis.llen(f"{stage.prefix}:waiting"), 20)
    worker.kill("SIGTERM")
    stage.send_directly()
    endpoints.wait_for("/readyz", 503, "the worker is stopping")
    assert endpoints.get("/livez").status == 200
    stage.redis.rpush(f"{stage.prefix}:go", "now")
    assert worker.wait() == 0


def test_an_outage_of_the_broker_with_every_pool(
    stage_with: Callable[..., Stage], private_server: Callable[[str], PrivateServer]
) -> None:
    rabbit = private_server("rabbitmq")
    stage = stage_with(broker=f"amqp://guest:guest@127.0.0.1:{rabbit.port}//")
    workers = {pool: Endpoints() for pool in ("prefork", "threads", "solo")}
    for pool, endpoints in workers.items():
        stage.worker(*endpoints.flags, "--outbox-relays=3", pool=pool, concurrency=1)
    for endpoints in workers.values():
        endpoints.wait_for("/readyz", 200, "default: relaying")
    rabbit.stop()
    for endpoints in workers.values():
        endpoints.wait_for("/readyz", 503, "default: waiting for the broker")
        assert endpoints.get("/livez").status == 200
        assert endpoints.metrics()["celery_outbox_broker_up default"] == 0
        assert endpoints.relay_state() == "waiting for the broker"
    rabbit.start()
    for endpoints in workers.values():
        endpoints.wait_for("/readyz", 200, "default: relaying")


def test_a_relay_that_stands_by_is_ready_and_shows_no_table(stage: Stage) -> None:
    working, standing_by = Endpoints(), Endpoints()
    stage.worker(*working.flags, "--outbox-relays=1", pool="threads")
    stage.worker(*standing_by.flags, "--outbox-relays=1", pool="solo")
    standing_by.wait_for("/readyz", 200, "default: standing by")
    assert standing_by.relay_state() == "standing by"
    assert "celery_outbox_rows default waiting" not in standing_by.metrics()
    assert "celery_outbox_rows default waiting" in working.metrics()


def test_one_endpoint_answers_for_all_databases(
    stage_with: Callable[..., Stage], databases: Any
) -> None:
    aliases = {"default": databases.make("postgres"), "orders": databases.make("sqlite")}
    stage = stage_with(aliases=aliases, CELERY_OUTBOX_DATABASES=["default", "orders"])
    endpoints = Endpoints()
    stage.worker(*endpoints.flags, pool="threads")
    endpoints.wait_for("/readyz", 200, "default: relaying\norders: relaying\n")


def test_without_the_sink_metrics_say_how_to_get_them(stage: Stage) -> None:
    endpoints = Endpoints()
    stage.worker(endpoints.flags[0], pool="solo")
    found = endpoints.get("/metrics")
    assert found.status == 404
    assert 'set CELERY_OUTBOX_METRICS to "prometheus"' in found.text


def test_a_port_that_is_taken_and_a_flag_without_a_relay_are_refused(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        error = one_error(stage.refused(f"--outbox-http={port}"))
    assert f"port {port} of 127.0.0.1 is taken. Choose another one" in error
    assert "--outbox-http needs --outbox-relay" in one_error(
        stage.refused("--outbox-http=9100", relay=False)
    )
