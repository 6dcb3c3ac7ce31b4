"""Destinations in real workers: each on its own, whatever becomes of the others."""

from __future__ import annotations

import os
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from django.db import connections
from kombu import Connection, Exchange, Queue

from celery_outbox_steps.fleet import REFRESH
from celery_outbox_steps.worker.membership import PATIENCE
from django_integration.store import DjangoStore
from tests import helpers
from tests.acceptance.events import Events, slowest_but_few
from tests.acceptance.test_fleet import LONGEST_WAIT, RELAYS, Fleet
from tests.acceptance.test_http import Endpoints
from tests.harness.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.acceptance.conftest import AliasedDatabases
    from tests.acceptance.stage import Stage
    from tests.harness.servers import PrivateServer
    from tests.harness.workers import Worker

LAG = 0.5
"""Seconds from commit to arrival for 95 of 100 messages, also while another destination is away. A
relay that shared its time with the other one would need seconds: the other's `send_timeout`."""
RATE = os.environ.get("RATE", "20/s")
RATE_SECONDS = float(os.environ.get("RATE_SECONDS", "10"))
"""`RATE=600/m RATE_SECONDS=60` measures a whole minute, for which five per cent are promised; in a
shorter time a moment in which the machine is busy weighs more. With a clock that is not a real one:
`tests/unit/test_rates_of_relays.py`."""
WITHIN = 0.05 if RATE_SECONDS >= 60 else 0.1
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

        proxy.stall()
        events.publish(10, to=["partner"])
        helpers.wait_for(lambda: events.rows("claimed_by IS NOT NULL"), 20)
        stopping = monotonic()
        assert stage.stop(worker) == 0
        assert monotonic() - stopping < 10
        assert events.rows("claimed_by IS NULL AND retries = 0") == 10
    assert events.dead_letters() == []
    assert worker.lines("publish_failed", "dead_letter", "relay_error", "Traceback") == []
    assert worker.lines("celery_outbox_destination_unavailable: partner")
    assert worker.lines("celery_outbox_destination_recovered: partner")


def test_one_that_refuses_fails_alone(stage: Stage, events_on: Callable[..., Events]) -> None:
    fine, missing, full = (f"{stage.prefix}.{each}" for each in ("fine", "missing", "full"))
    refusing = {"url": rabbitmq(), "declare": False, "max_retries": 1}
    events = events_on(
        stage,
        {
            "fine": {"url": rabbitmq(), "exchange": fine},
            "missing": {"exchange": missing, **refusing},
            "full": {"exchange": full, **refusing},
        },
    )
    events.listen_to_parcels()
    events.listen("fine", rabbitmq(), everything_to(fine))
    exchange = Exchange(full, "topic", auto_delete=True)
    limits = {"x-max-length": 3, "x-overflow": "reject-publish"}
    with Connection(rabbitmq()) as connection:
        bound = Queue(full, exchange, "#", exclusive=True, queue_arguments=limits)(connection)
        bound.declare()
        ids = events.publish(10)
        tasks = stage.send_parcels(10)
        stage.worker()
        events.wait_until_empty()
        stage.wait_until_empty()
    dead = events.dead_letters()
    assert Counter(name for name, _ in dead) == {"missing": 10, "full": 7}
    for place, wanted in (("fine", ids), ("tasks", tasks)):
        arrivals = events.listeners[place].arrivals
        helpers.wait_for(lambda: len(arrivals) >= 10)  # noqa: B023
        assert sorted(each.id for each in arrivals) == sorted(wanted)

    events.publish(3, to=["missing"], key=lambda number: "one")
    helpers.wait_for(lambda: len(events.dead_letters()) == 18, 20)
    assert events.rows("destination = 'missing' AND claimed_by IS NULL") == 2, "not held back"


def several(stage: Stage, count: int, **options: Any) -> dict[str, dict[str, Any]]:
    """Destinations on the shared RabbitMQ, each with an exchange of its own."""
    names = [f"to{number}" for number in range(count)]
    return {
        name: {"url": rabbitmq(), "exchange": f"{stage.prefix}.{name}", **options} for name in names
    }


def listen_to_all(events: Events, destinations: dict[str, dict[str, Any]]) -> None:
    for name, options in destinations.items():
        events.listen(name, rabbitmq(), everything_to(options["exchange"]))


def sessions(stage: Stage) -> int:
    found = stage.sql(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid()"
    )
    return int(found[0][0])


def test_a_fleet_has_one_more_session_per_working_relay_and_replaces_the_dead(
    stage: Stage,
    events_on: Callable[..., Events],
    record_property: Callable[[str, object], None],
) -> None:
    service = helpers.require_service("rabbitmq")
    with Proxy(service.host, service.port) as proxy:
        destinations = several(stage, 5)
        stalling = destinations["to0"]
        stalling["url"] = rabbitmq().replace(service.address, f"127.0.0.1:{proxy.port}")
        events = events_on(stage, destinations)
        listen_to_all(events, destinations)
        events.listen_to_parcels()
        fleet = Fleet(stage)
        fleet.start(5)
        with events.load(pause=0.05) as load:
            for name in events.names:
                load.wait_for_more(name, 20)
            counts = [sessions(stage) for _ in range(50)]
            # Ours is the producer's. Those that stand by come for a moment, one at a time.
            assert max(counts) <= 2 * RELAYS + 1 + 2
            assert sorted(counts)[len(counts) // 2] <= 2 * RELAYS + 1
            record_property("sessions", (min(counts), max(counts)))
            gone = fleet.at_work()
            assert len(gone) == RELAYS
            proxy.stall()
            held = "destination = 'to0' AND claimed_by IS NOT NULL"
            helpers.wait_for(lambda: events.rows(held), 20)
            killed = monotonic()
            for worker in gone:
                worker.kill("SIGKILL")
            proxy.cut()
            proxy.resume()
            fleet.workers = [worker for worker in fleet.workers if worker not in gone]
            fleet.wait_until_others_work(gone, LONGEST_WAIT)
        for name in events.names:
            longest = load.longest_wait_after(name, killed)
            record_property(f"longest wait of {name}", round(longest, 1))
            assert longest < LONGEST_WAIT
            assert events.listeners[name].out_of_order() == []
        events.wait_until_empty()


def test_operators_see_and_pause_each_of_them(
    stage: Stage, events_on: Callable[..., Events]
) -> None:
    destinations = several(stage, 2)
    gone = {"url": "amqp://guest:guest@127.0.0.1:9//", "exchange": "e", **IMPATIENT}
    events = events_on(stage, {**destinations, "gone": gone})
    listen_to_all(events, destinations)
    endpoints = Endpoints()
    worker = stage.worker(*endpoints.flags)
    assert worker.lines("outbox: with the destinations gone, to0, to1")
    events.publish()
    listener = events.listeners["to0"]
    helpers.wait_for(lambda: len(listener.arrivals) == 1, 20)

    def states() -> dict[str, str]:
        (relay,) = stage.ask(worker, "outbox")["relays"]
        assert relay["state"] == "relaying"
        return {each["destination"]: each["state"] for each in relay["destinations"]}

    cooling = "cooling down after an outage"
    wanted = {"to0": "relaying", "to1": "relaying", "gone": cooling}
    helpers.wait_for(lambda: states() == wanted, 30, lambda: str(states()))
    # The worker does its part: nothing that a restart or another worker would mend.
    assert endpoints.get("/livez").status == endpoints.get("/readyz").status == 200
    assert 'destination="gone"' in endpoints.get("/metrics").text

    store = DjangoStore(stage.aliases["default"])
    begin = monotonic()
    store.pause("maintenance", "me", "to0")
    helpers.wait_for(lambda: states()["to0"] == "paused", 10)
    assert monotonic() - begin < REFRESH + 1.5
    events.publish(5, to=["to0", "to1"])
    helpers.wait_for(lambda: len(events.listeners["to1"].arrivals) == 6)
    assert len(listener.arrivals) == 1
    assert events.rows("destination = 'to0'") == 5
    assert endpoints.get("/readyz").status == 200
    store.resume("to0")
    store.close()
    helpers.wait_for(lambda: len(listener.arrivals) == 6, 10)


def test_idle_ones_cost_next_to_nothing(
    stage: Stage,
    events_on: Callable[..., Events],
    record_property: Callable[[str, object], None],
) -> None:
    alone = stage.worker(pool="solo")
    without = idle_cost(stage, alone)
    assert alone.stop() == 0
    events = events_on(stage, several(stage, 5))
    worker = stage.worker(pool="solo")
    events.publish()
    events.wait_until_empty()
    with_five = idle_cost(stage, worker)
    record_property("without destinations", without)
    record_property("with five", with_five)
    # Once per second and destination: a claim, another from the very beginning, and a look ahead.
    assert with_five["transactions"] < without["transactions"] + 5 * 3
    assert with_five["cpu"] < 0.05
    assert with_five["megabytes"] < without["megabytes"] + 20


def idle_cost(stage: Stage, worker: Worker) -> dict[str, float]:
    """Per second, over some seconds without work."""
    helpers.wait_for(lambda: worker.lines("celery_outbox_relay_at_work"), 20)

    def transactions() -> int:
        found = stage.sql(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        )
        return int(found[0][0])

    for seconds in (2, 6):  # first it slows down, then it is measured
        begin, before, cpu = monotonic(), transactions(), worker.cpu_seconds()
        helpers.wait_for(lambda: monotonic() - begin > seconds, pause=0.5)  # noqa: B023
    took = monotonic() - begin
    return {
        "transactions": round((transactions() - before) / took, 2),
        "cpu": round((worker.cpu_seconds() - cpu) / took, 4),
        "megabytes": psutil.Process(worker.process.pid).memory_info().rss / 2**20,
    }


def test_forks_and_stops_damage_nothing(stage: Stage, events_on: Callable[..., Events]) -> None:
    destinations = several(stage, 2)
    lake = redis_queue(stage)
    events = events_on(stage, {**destinations, "lake": lake})
    listen_to_all(events, destinations)
    events.listen("lake", lake["url"], Queue("lake"), lake["transport_options"])
    forking = stage.worker("--max-tasks-per-child=1")
    with events.load() as load:
        for _ in range(3):
            stage.wait_until_ran(stage.enqueue(4))
        assert stage.stop(forking) == 0
        assert events.rows("claimed_by IS NOT NULL") == 0
        after = stage.worker()
        load.wait_for_more("to0", 50)
        began = monotonic()
        assert stage.stop(after, "SIGQUIT") in (0, 1)
        assert monotonic() - began < 10
        assert events.rows("claimed_by IS NOT NULL") == 0
        last = stage.worker()
        load.wait_for_more("to0", 50)
    for name, listener in events.listeners.items():
        assert listener.out_of_order() == []
        assert len(listener.arrivals) == len(load.committed[name]), "something was sent twice"
    assert [each for worker in (forking, last) for each in worker.complaints()] == []


def test_a_database_that_restarts(
    stage_with: Callable[..., Stage],
    databases: AliasedDatabases,
    events_on: Callable[..., Events],
    private_server: Callable[[str], PrivateServer],
) -> None:
    server = private_server("postgres")
    alias = databases.make("postgres", service=server.service, suffix="_events")
    stage = stage_with(aliases={"default": alias})
    destinations = several(stage, 2)
    events = events_on(stage, destinations)
    listen_to_all(events, destinations)
    worker = stage.worker()
    ids = events.publish(20, key=lambda number: f"key-{number % 3}")
    events.wait_until_empty()
    server.stop()
    worker.wait_for("celery_outbox_relay_error", times=4)
    server.start()
    connections[alias].close()
    worker.wait_for("celery_outbox_relay_recovered", times=3)
    ids += events.publish(20, key=lambda number: f"key-{number % 3}")
    events.wait_until_empty()
    for name in destinations:
        listener = events.listeners[name]
        helpers.wait_for(lambda: len(listener.arrivals) == 40)  # noqa: B023
        assert listener.out_of_order() == []
    assert worker.lines("Traceback", "dead_letter") == []
    begin = monotonic()
    events.publish(to=["to0"])
    helpers.wait_for(lambda: len(events.listeners["to0"].arrivals) == 41, pause=0.005)
    assert monotonic() - begin < LAG, "no notification is heard any more"


def test_rates_hold_with_three_relays_and_delay_nothing_else(
    stage: Stage,
    events_on: Callable[..., Events],
    record_property: Callable[[str, object], None],
) -> None:
    stage.settings["CELERY_OUTBOX_RATES"] = {"mail.*": RATE, "sms.*": RATE}
    destinations = several(stage, 1)
    events = events_on(stage, destinations)
    events.listen_to_parcels()
    listen_to_all(events, destinations)
    workers = [stage.prepare("--outbox-relays=3", pool="solo") for _ in range(3)]
    for worker in workers:
        worker.process.start()
    for worker in workers:
        worker.wait_for("celery_outbox_relay_at_work", 60)
    number, _, unit = RATE.partition("/")
    per_second = int(number) / {"s": 1, "m": 60}[unit]
    count = int(per_second * (RATE_SECONDS + 4))
    rated = {
        "tasks": set(stage.enqueue(count, "mail.send", queue=stage.parcels)),
        "to0": set(events.publish(count, name="sms.sent")),
    }
    started = monotonic()
    with events.load(pause=0.05) as load:
        helpers.wait_for(lambda: monotonic() - started > RATE_SECONDS + 2.5, RATE_SECONDS + 10)
        end = monotonic()
        for place, ids in rated.items():
            times = [each.at for each in events.listeners[place].arrivals if each.id in ids]
            inside = sum(end - RATE_SECONDS <= at < end for at in times)
            record_property(place, (inside, RATE_SECONDS))
            assert inside == pytest.approx(per_second * RATE_SECONDS, rel=WITHIN)
    for place in rated:
        assert slowest_but_few(load.waits(place)) < LAG
    events.wait_until_empty()
    stage.wait_until_empty()


def test_they_get_everything_while_the_apps_own_broker_is_away_for_the_whole_fleet(
    stage: Stage, events_on: Callable[..., Events]
) -> None:
    """A relay that can't reach the app's own broker gives its slot away only to one that can."""
    rabbit = helpers.require_service("rabbitmq")
    destinations = several(stage, 1)
    events = events_on(stage, destinations)
    listen_to_all(events, destinations)
    with Proxy(rabbit.host, rabbit.port) as proxy:
        through = {
            "CELERY_BROKER_URL": stage.broker.replace(rabbit.address, f"127.0.0.1:{proxy.port}")
        }
        workers = [
            stage.prepare("--outbox-relays=1", pool="solo", settings=through) for _ in range(2)
        ]
        for worker in workers:
            worker.process.start()
        for worker in workers:
            worker.wait_for(" ready.", 30)
    lost = monotonic()
    with events.load(pause=0.2) as load:
        helpers.wait_for(lambda: monotonic() - lost > PATIENCE + 3 * REFRESH, 60)
    assert max(load.waits("to0")) < 2 * REFRESH
    assert sum(len(each.lines("relay_at_work")) for each in workers) == 1, "the slot moved"


@pytest.mark.parametrize(
    ("pool", "database"), [("gevent", "postgres"), ("threads", "mysql"), ("solo", "sqlite")]
)
def test_every_pool(
    pool: str,
    database: str,
    stage_with: Callable[..., Stage],
    events_on: Callable[..., Events],
) -> None:
    stage = stage_with(database)
    destinations = several(stage, 2)
    events = events_on(stage, destinations)
    listen_to_all(events, destinations)
    worker = stage.worker(pool=pool)
    tasks = stage.enqueue(5)
    ids = events.publish(30, key=lambda number: f"key-{number % 3}")
    stage.wait_until_ran(tasks)
    events.wait_until_empty()
    for listener in events.listeners.values():
        helpers.wait_for(lambda: len(listener.arrivals) >= 30)  # noqa: B023
        assert sorted(each.id for each in listener.arrivals) == sorted(ids)
        assert listener.out_of_order() == []
    assert worker.stop() == 0
    assert worker.complaints() == []


def test_an_event_of_a_task_in_the_pool_wakes_the_relay_of_its_worker(
    stage_with: Callable[..., Stage], events_on: Callable[..., Events]
) -> None:
    stage = stage_with("mysql")  # no NOTIFY: it is the pool's child that tells its parent
    destinations = several(stage, 2)
    events = events_on(stage, destinations)
    listen_to_all(events, destinations)
    worker = stage.worker("--outbox-idle-time=60")
    listener = events.listeners["to1"]
    events.publish(to=["to1"])  # found by the first claim, or by polling at the beginning
    helpers.wait_for(lambda: len(listener.arrivals) == 1, 60)
    stage.send_directly("announce", kwargs={"to": "to1"})
    helpers.wait_for(lambda: len(listener.arrivals) == 2, 10, worker.logs)


def test_two_databases_with_the_same_destinations(
    stage_with: Callable[..., Stage],
    databases: AliasedDatabases,
    events_on: Callable[..., Events],
) -> None:
    aliases = {
        "default": databases.make("postgres"),
        "orders": databases.make("postgres", suffix="_orders"),
    }
    stage = stage_with(aliases=aliases, CELERY_OUTBOX_DATABASES=["default", "orders"])
    destinations = several(stage, 2)
    events = events_on(stage, destinations)
    listen_to_all(events, destinations)
    worker = stage.worker()
    ids = [
        *events.publish(5, key=lambda number: "one"),
        *events.publish(5, key=lambda number: "one", database="orders"),
    ]
    for listener in events.listeners.values():
        helpers.wait_for(lambda: len(listener.arrivals) == 10, 20, worker.logs)  # noqa: B023
        assert {each.id for each in listener.arrivals} == set(ids)
    relays = stage.ask(worker, "outbox")["relays"]
    assert {
        relay["database"]: [each["counters"]["published"] for each in relay["destinations"]]
        for relay in relays
    } == {"default": [5, 5], "orders": [5, 5]}
    assert worker.stop() == 0
    assert worker.complaints() == []
