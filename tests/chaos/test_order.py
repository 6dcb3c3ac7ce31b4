"""Messages with a key arrive in the order of their commits, under everything that goes wrong.

Four relays in workers of their own; each reaches destination and database through proxies that cut
and stall, the destination refuses what its short queue has no room for, and workers are killed and
replaced. An order counts as kept if, repeats of what arrived before left aside, each message of a
key arrives after all earlier ones. `EVENTS=100000 KEYS=1000` run more than the few of CI, and
`DATABASE=mysql` another database.
"""

from __future__ import annotations

import json
import os
import random
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from kombu import Exchange, Queue

from tests import helpers
from tests.acceptance.events import Events
from tests.harness.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.acceptance.stage import Stage
    from tests.harness.workers import Worker
    from tests.services import Service

EVENTS = int(os.environ.get("EVENTS", "5000"))
KEYS = int(os.environ.get("KEYS", "200"))
DATABASE = os.environ.get("DATABASE", "postgres")
SEED = os.environ.get("SEED", "")
RELAYS = 4
PER_TRANSACTION = 25
ROOM = 10
"""Messages that the queue of the destination has room for."""
FLAGS = (
    # More slots than workers: that of a killed one is taken for some seconds.
    "--outbox-relays=50", "--outbox-batch-size=200", "--outbox-send-timeout=1",
    "--outbox-broker-outage-cooldown=0.3", "--outbox-backoff-time=0.2", "--outbox-max-backoff=1",
    "--outbox-max-retries=1000000",
)  # fmt: skip


class Place:
    """Where one worker runs at a time, behind proxies of its own."""

    def __init__(self, stage: Stage, destination: dict[str, Any], broker: Service) -> None:
        self.proxies = [Proxy(broker.host, broker.port)]
        self._stage = stage
        through = destination["url"].replace(broker.address, f"127.0.0.1:{self.proxies[0].port}")
        self._settings = {"CELERY_OUTBOX_DESTINATIONS": {"to": {**destination, "url": through}}}
        self._environment = {}
        if DATABASE != "sqlite":
            database = stage.database_settings()
            self.proxies.append(Proxy(database["HOST"], int(database["PORT"])))
            behind = {**database, "HOST": "127.0.0.1", "PORT": str(self.proxies[1].port)}
            self._environment = {"ACCEPTANCE_DATABASES": json.dumps({"default": behind})}
        for proxy in self.proxies:
            proxy.__enter__()
        self.worker = self.prepare()

    def prepare(self) -> Worker:
        worker = self._stage.prepare(
            *FLAGS, pool="solo", concurrency=1, settings=self._settings, **self._environment
        )
        worker.process.start()
        return worker

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.resume()
            proxy.__exit__(None, None, None)

    def kill(self) -> None:
        self.worker.kill("SIGKILL")
        self.worker = self.prepare()


class Faults:
    """Something goes wrong all the time, until `end` is set."""

    def __init__(self, places: list[Place], seed: str) -> None:
        self.counts = {"cut": 0, "cut in a message": 0, "stall": 0, "kill": 0}
        self.end = threading.Event()
        self._places = places
        self._random = random.Random(seed)
        self._thread = threading.Thread(target=self._main, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.end.set()
        self._thread.join(30)
        for place in self._places:
            for proxy in place.proxies:
                proxy.resume()

    def _main(self) -> None:
        kill_at = monotonic()
        while not self.end.wait(self._random.uniform(0.05, 0.5)):
            place = self._random.choice(self._places)
            proxy = self._random.choice(place.proxies)
            what = self._random.choice(list(self.counts)[:-1])
            if monotonic() >= kill_at:
                what, kill_at = "kill", monotonic() + 4
            self.counts[what] += 1
            if what == "cut":
                proxy.cut()
            elif what == "cut in a message":
                proxy.cut_after(self._random.randrange(1, 20_000))
            elif what == "stall":
                proxy.stall()
                self.end.wait(self._random.uniform(0.2, 2.5))
                proxy.resume()
            else:
                place.kill()


@pytest.mark.postgresql
@pytest.mark.rabbitmq
@pytest.mark.redis
@pytest.mark.timeout(180 + EVENTS / 50)
def test_the_order_of_each_key_is_kept_and_nothing_is_lost(
    stage_with: Callable[..., Stage], record_property: Callable[[str, object], None]
) -> None:
    stage = stage_with(DATABASE)
    seed = SEED or stage.prefix
    broker = helpers.require_service("rabbitmq")
    exchange = Exchange(f"{stage.prefix}.events", "topic")
    limits = {"x-max-length": ROOM, "x-overflow": "reject-publish"}
    destination = {"url": broker.url, "exchange": exchange.name}
    events = Events(stage, {"to": destination})
    queue = Queue(f"{exchange.name}.all", exchange, "#", queue_arguments=limits)
    listener = events.listen("to", broker.url, queue, at_once=ROOM)
    begin = monotonic()
    places = [Place(stage, destination, broker) for _ in range(RELAYS)]
    faults = Faults(places, seed)
    committed: list[str] = []

    def produce() -> None:
        alias = stage.aliases["default"]
        while len(committed) < EVENTS:
            with transaction.atomic(using=alias), stage.client.outbox_bulk():
                ids = events.publish(PER_TRANSACTION, key=lambda number: f"key-{number % KEYS}")
            committed.extend(ids)
        connections.close_all()

    producer = threading.Thread(target=produce, daemon=True)
    timeout = 60 + EVENTS / 100
    try:
        for place in places:
            place.worker.wait_for("celery_outbox_relay_at_work", 60)
        producer.start()
        helpers.wait_for(lambda: len(listener.arrivals) > 100, 60, stage.logs)
        faults.start()
        helpers.wait_for(lambda: len(committed) >= EVENTS, timeout, stage.logs, 0.2)
        helpers.wait_for(lambda: events.rows() < 0.05 * EVENTS, timeout, stage.logs, 0.2)
        faults.stop()
        events.wait_until_empty(60)
        helpers.wait_for(lambda: set(committed) <= listener.first_arrivals().keys(), 20)
        took = monotonic() - begin
        repeats = len(listener.arrivals) - len(listener.first_arrivals())
        figures = {"seed": seed, **faults.counts, "repeats": repeats, "seconds": round(took)}
        refused = stage.logs().count("celery_outbox_publish_failed")
        record_property("figures", {**figures, "refused": refused, "events": len(committed)})
        assert listener.out_of_order() == [], figures
        assert listener.first_arrivals().keys() == set(committed)
        assert events.dead_letters() == []
    finally:
        faults.stop()
        for place in places:
            place.close()
        producer.join(10)
        events.close()
