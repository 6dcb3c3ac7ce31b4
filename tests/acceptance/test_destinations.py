"""Destinations in real workers: each on its own, whatever becomes of the others."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from kombu import Exchange, Queue

from tests import helpers
from tests.acceptance.events import Events, slowest_but_few
from tests.harness.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.acceptance.stage import Stage
    from tests.harness.servers import PrivateServer

LAG = 0.5
"""Seconds from commit to arrival for 95 of 100 messages, also while another destination is away. A
relay that shared its time with the other one would need seconds: the other's `send_timeout`."""
IMPATIENT = {"send_timeout": 2, "broker_outage_cooldown": 1}


@pytest.fixture
def events_on(stage_with: Callable[..., Stage]) -> Iterator[Callable[..., Events]]:
    """`events_on(stage, {"name": {…}})`"""
    made: list[Events] = []

    def build(stage: Stage, destinations: dict[str, dict[str, Any]]) -> Events:
        made.append(Events(stage, destinations))
        return made[-1]

    yield build
    for each in made:
        each.close()
    connections.close_all()


def rabbitmq() -> str:
    return helpers.require_service("rabbitmq").url


def redis_queue(stage: Stage) -> dict[str, Any]:
    """A destination: a list in Redis."""
    service = helpers.require_service("redis")
    return {
        "url": f"redis://{service.host}:{service.port}/9",
        "queue": "lake",
        "transport_options": {"global_keyprefix": f"{stage.prefix}:"},
    }


def everything_to(exchange: str) -> Queue:
    return Queue(f"{exchange}.all", Exchange(exchange, "topic"), "#")


def test_one_that_is_away_or_silent_delays_nobody_and_gets_everything_afterwards(
    stage: Stage,
    events_on: Callable[..., Events],
    private_server: Callable[[str], PrivateServer],
    record_property: Callable[[str, object], None],
) -> None:
    partner = private_server("rabbitmq")
    address = f"amqp://guest:guest@127.0.0.1:{partner.port}//"
    with Proxy("127.0.0.1", partner.port) as proxy:
        through = address.replace(str(partner.port), str(proxy.port))
        exchange, lake = f"{stage.prefix}.events", redis_queue(stage)
        events = events_on(
            stage,
            {
                "events": {"url": rabbitmq(), "exchange": exchange},
                "lake": lake,
                "partner": {"url": through, "exchange": exchange, **IMPATIENT},
            },
        )
        events.listen_to_parcels()
        events.listen("events", rabbitmq(), everything_to(exchange))
        events.listen("lake", lake["url"], Queue("lake"), lake["transport_options"])
        events.listen("partner", address, everything_to(exchange))
        worker = stage.worker()
        with events.load() as load:
            load.wait_for_more("partner", 100)
            for fault, (begin, end) in {
                "away": (partner.stop, partner.start),
                "silent": (proxy.stall, proxy.resume),
            }.items():
                since = monotonic()
                begin()
                helpers.wait_for(lambda: events.rows("destination = 'partner'") > 150, 30)
                until = monotonic()
                end()
                for place in ("tasks", "events", "lake"):
                    helpers.wait_for(lambda: not load.missing(place) or monotonic() > until + 5)  # noqa: B023
                    took = slowest_but_few(load.waits(place, since, until))
                    record_property(f"{place} while the partner is {fault}", round(took, 3))
                    assert took < LAG, f"{place} while the partner is {fault}"
                helpers.wait_for(lambda: events.rows() < 30, 30, stage.logs)
        events.wait_until_empty()
    for place, listener in events.listeners.items():
        assert listener.first_arrivals().keys() == load.committed[place].keys()
        assert listener.out_of_order() == []
    assert events.dead_letters() == []
    assert worker.lines("publish_failed", "dead_letter", "relay_error", "Traceback") == []
    assert worker.lines("celery_outbox_destination_unavailable: partner")
    assert worker.lines("celery_outbox_destination_recovered: partner")
