"""The flag on every worker: two of twenty relay, whatever happens to them."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

import pytest
from django.db import connections

from celery_outbox_steps.fleet import MEMBERSHIP
from tests import helpers
from tests.acceptance.conftest import LEDGER_DB
from tests.acceptance.load import watched_load
from tests.acceptance.stage import Stage
from tests.chaos.workers import skewed
from tests.harness.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.acceptance.conftest import AliasedDatabases
    from tests.harness.servers import PrivateServer
    from tests.harness.workers import Worker

RELAYS = 2
WORKERS = 20
LONGEST_WAIT = 20.0
"""Seconds after a kill, with default settings."""
LONGEST_GAP = 2.0
"""Seconds when workers are stopped as they should be."""
AT_ONCE = 5
"""Workers that a rolling deploy replaces at a time."""
DAMAGES = (
    "DELETE FROM celery_outbox_relay",
    "UPDATE celery_outbox_relay SET slot = NULL, state = '?', expires_at = '1970-01-01'",
    "UPDATE celery_outbox_relay SET slot = 77 WHERE slot = 0",
    "UPDATE celery_outbox_relay SET expires_at = '2999-01-01', seen_at = '1970-01-01'",
)
"""What people do to a table by hand."""


class Fleet:
    """Workers that all have the flag, and what their table says."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.workers: list[Worker] = []

    def start(self, count: int, *flags: str, **environment: str) -> list[Worker]:
        """Start workers at the same time."""
        started = [
            self.stage.prepare(*flags, pool="solo", concurrency=1, **environment)
            for _ in range(count)
        ]
        for worker in started:
            worker.process.start()
        for worker in started:
            worker.wait_for(" ready.", 60)
            worker.wait_for("outbox: ", 60)
        self.workers += started
        return started

    def stop(self, workers: list[Worker]) -> None:
        for worker in workers:
            worker.kill("SIGTERM")
        for worker in workers:
            assert worker.wait() == 0
            self.workers.remove(worker)

    def at_work(self) -> list[Worker]:
        """The workers that hold a slot."""
        found = self.stage.sql(
            "SELECT worker FROM celery_outbox_relay"
            " WHERE slot IS NOT NULL AND expires_at BETWEEN clock_timestamp()"
            f" AND clock_timestamp() + interval '{MEMBERSHIP} seconds'"
        )
        names = {name for (name,) in found}
        return [worker for worker in self.workers if worker.node in names]

    def wait_until_others_work(self, gone: list[Worker], timeout: float) -> list[Worker]:
        def others() -> list[Worker]:
            return [worker for worker in self.at_work() if worker not in gone]

        helpers.wait_for(lambda: len(others()) == RELAYS, timeout, self.stage.logs)
        return others()

    def wait_until_at_work(self, count: int = RELAYS) -> None:
        helpers.wait_for(lambda: len(self.at_work()) == count, LONGEST_WAIT, self.stage.logs)

    def replace(self, count: int, *flags: str) -> None:
        """A rolling deploy of the whole fleet."""
        old = list(self.workers)
        self.start(count, *flags)
        self.stop(old)

    def held_by(self, workers: list[Worker]) -> set[str]:
        """Ids of the messages that these workers have claimed."""
        found = self.stage.sql(
            "SELECT task_id FROM celery_outbox JOIN celery_outbox_relay ON claimed_by = relay_id"
            f" WHERE worker IN ({', '.join(repr(worker.node) for worker in workers)})"
        )
        return {task_id for (task_id,) in found}


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, databases: AliasedDatabases, django_db_blocker
) -> Iterator[Fleet]:
    ledger = helpers.require_service("redis")
    with django_db_blocker.unblock():
        stage = Stage(
            path=tmp_path_factory.mktemp("fleet"),
            broker=helpers.require_service("rabbitmq").url,
            aliases={"default": databases.make("postgres")},
            ledger=f"redis://{ledger.host}:{ledger.port}/{LEDGER_DB}",
        )
        fleet = Fleet(stage)
        fleet.start(WORKERS)
        yield fleet
        stage.close()


def test_two_of_twenty_relay_and_each_says_what_it_does(fleet: Fleet) -> None:
    said = [worker.lines("outbox: ")[0].partition("outbox: ")[2] for worker in fleet.workers]
    assert sorted(set(said)) == ["relaying default", "standing by for default"]
    assert said.count("relaying default") == len(fleet.at_work()) == RELAYS
    sessions = fleet.stage.sql(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid()"
    )
    assert sessions[0][0] <= RELAYS + 2


def test_everything_arrives_soon_when_the_working_ones_are_killed_again_and_again(
    fleet: Fleet, record_property: Callable[[str, object], None]
) -> None:
    held: set[str] = set()
    with watched_load(fleet.stage) as traffic:
        for _ in range(2):
            traffic.wait_for_more(50)
            gone = fleet.at_work()
            assert len(gone) == RELAYS
            for worker in gone:
                worker.kill("SIGKILL")
            held |= fleet.held_by(gone)
            fleet.workers = [worker for worker in fleet.workers if worker not in gone]
            fleet.wait_until_others_work(gone, LONGEST_WAIT)
    record_property("longest_wait", traffic.longest_wait())
    record_property("twice", (len(traffic.twice()), len(traffic.committed)))
    assert traffic.longest_wait() < LONGEST_WAIT
    assert traffic.twice() <= held


def test_a_frozen_one_is_replaced_and_sends_nothing_when_it_wakes_up(fleet: Fleet) -> None:
    with watched_load(fleet.stage) as traffic:
        traffic.wait_for_more(50)
        frozen = fleet.at_work()
        for worker in frozen:
            worker.kill("SIGSTOP")
        held, begin = fleet.held_by(frozen), monotonic()
        fleet.wait_until_others_work(frozen, LONGEST_WAIT)
        helpers.wait_for(lambda: monotonic() - begin > MEMBERSHIP + 2, 30)
        for worker in frozen:
            worker.kill("SIGCONT")
            worker.wait_for("celery_outbox_relay_standing_by", 20)
    assert traffic.longest_wait() < LONGEST_WAIT
    assert traffic.twice() <= held  # what it may have sent before it froze
    assert len(fleet.at_work()) == RELAYS


def test_a_rolling_deploy_leaves_no_gap_and_sends_nothing_twice(
    fleet: Fleet, record_property: Callable[[str, object], None]
) -> None:
    old = list(fleet.workers)
    with watched_load(fleet.stage) as traffic:
        while old:
            fleet.start(AT_ONCE)
            leaving, old = old[:AT_ONCE], old[AT_ONCE:]
            fleet.stop(leaving)
    record_property("longest_wait", traffic.longest_wait())
    assert traffic.longest_wait() < LONGEST_GAP
    assert traffic.twice() == set()
    assert len(fleet.at_work()) == RELAYS


def test_one_whose_broker_is_away_gives_its_slot_to_one_that_can_work(
    stage_with: Callable[..., Stage],
) -> None:
    stage = stage_with("mysql")
    rabbit = helpers.require_service("rabbitmq")
    flags = ("--outbox-relays=1", "--outbox-send-timeout=1", "--outbox-broker-outage-cooldown=1")
    with Proxy(rabbit.host, rabbit.port) as proxy:
        cut_off = stage.worker(*flags, pool="solo", settings=stage.behind(proxy.port))
        other = stage.worker(*flags, pool="solo")
        other.wait_for("outbox: standing by for default")
        proxy.stall()
        ids = stage.send_parcels(20)
        other.wait_for("celery_outbox_relay_at_work", 30)
        stage.wait_until_empty()
        assert cut_off.lines("celery_outbox_relay_standing_by: cooling down")
    assert set(stage.arrived()) == set(ids)


def test_it_converges_by_itself(
    stage_with: Callable[..., Stage],
    databases: AliasedDatabases,
    private_server: Callable[[str], PrivateServer],
) -> None:
    postgres, rabbit = private_server("postgres"), private_server("rabbitmq")
    alias = databases.make("postgres", service=postgres.service, suffix="_fleet")
    stage = stage_with(
        broker=f"amqp://guest:guest@127.0.0.1:{rabbit.port}//", aliases={"default": alias}
    )
    fleet = Fleet(stage)
    fleet.start(2)
    fleet.start(1, **skewed("+3600"))
    fleet.start(1, **skewed("-3600"))
    with watched_load(stage) as traffic:
        for damage in DAMAGES:
            traffic.wait_for_more(20)
            stage.sql(damage)
            fleet.wait_until_at_work()
    assert traffic.twice() == set()

    for server in (postgres, rabbit):
        before = [worker.node for worker in fleet.at_work()]
        server.stop()
        server.start()
        connections[alias].close()
        ids = stage.send_parcels(50)
        stage.wait_until_empty()
        assert sorted(stage.arrived()) == sorted(ids)
        assert [worker.node for worker in fleet.at_work()] == before, "slots moved for nothing"

    for relays in (4, 1):
        fleet.replace(4, f"--outbox-relays={relays}")
        fleet.wait_until_at_work(relays)
