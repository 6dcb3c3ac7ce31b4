"""The Store on a Django database: claim, settle, and what a relay needs around them.

Keeps the contract of `celery_outbox_steps.store`: every write of a relay is fenced with its id,
every time is the database's, and no transaction stays open between two calls. Claim and settle are
in `lane.py`, messages for destinations in `deliveries.py`. What differs between databases is a
`Dialect`; counting is in `stats.py`, replay and purge in `maintenance.py`, members in `fleet.py`.
docs/reference/sql shows the statements in full.
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from celery_outbox_steps.errors import StoreNotReady
from django_integration.schema import DELIVERIES, HELD_PAYLOAD, OWN_BROKER, TASKS, Lane
from django_integration.store import maintenance, stats, waiting
from django_integration.store.deliveries import Deliveries
from django_integration.store.failed_tasks import insert_failed_task
from django_integration.store.fleet import FleetTables
from django_integration.store.lane import LaneStore
from django_integration.store.listen import Listener, WakePipe
from django_integration.store.mysql import MySQL
from django_integration.store.order import Order
from django_integration.store.pacing import use_rates
from django_integration.store.postgresql import PostgreSQL
from django_integration.store.session import Session
from django_integration.store.setup import missing_migrations
from django_integration.store.sqlite import SQLite
from django_integration.store.waiting import Waiting
from django_integration.store.writes import Writes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from celery_outbox_steps.fleet import Fleet, Member, Place
    from celery_outbox_steps.rates import Rate
    from celery_outbox_steps.store import DeadLetter, DeadLetters, Sample, ScheduledCall, Stats
    from django_integration.schema import MessageTable, Row
    from django_integration.store.dialect import Dialect
    from django_integration.store.failed_tasks import Failure

DIALECTS: dict[str, type[Dialect]] = {"postgresql": PostgreSQL, "mysql": MySQL, "sqlite": SQLite}


class DjangoStore(LaneStore):
    """The outbox behind one database alias, on a connection of its own.

    A given `connection` is used instead (by tests and the admin): as it is, never closed, and
    without LISTEN. `retention` in seconds keeps published rows instead of deleting them.
    `destinations` are the names of those that are configured.
    """

    def __init__(
        self,
        alias: str,
        *,
        retention: float | None = None,
        notify: bool = True,
        connection: BaseDatabaseWrapper | None = None,
        destinations: Iterable[str] = (),
    ) -> None:
        dialect = _dialect(alias, connection)
        session = Session(
            alias,
            self._prepare_session,
            connection=connection,
            begin=dialect.begin_transaction,
            options=dialect.options,
        )
        keep = retention is not None
        super().__init__(session, dialect, OWN_BROKER, keep=keep)
        self.retention = retention
        self._notify = notify
        self._listener = Listener(OWN_BROKER.table.channel, self._hear)
        self._wake_pipe = WakePipe(lambda _: self._next_due.forget())
        self._fleet = FleetTables(session, dialect)
        self._destinations = tuple(destinations)
        self.deliveries = (
            Deliveries(alias, dialect, keep=keep, notify=notify, connection=connection)
            if self._destinations
            else None
        )

    @property
    def listening(self) -> bool:
        """Whether a NOTIFY ends a wait."""
        return self._listener.listening and self._session.is_open

    @property
    def blocks_event_loop(self) -> bool:
        """Whether this driver blocks all greenlets of a gevent worker."""
        return self._dialect.blocks_event_loop(self._session.wrapper)

    def check(self) -> None:
        with self._session.errors():
            wrapper = self._session.open()
            problem = self._dialect.check(wrapper)
            problem = problem or missing_migrations(wrapper)
        if problem:
            raise StoreNotReady(f"database {self.name!r}: {problem}")

    def check_in(self, member: Member, *, relays: int | None, wants_slot: bool) -> Place:
        return self._fleet.check_in(member, relays, wants_slot=wants_slot)

    def check_out(self, relay_id: str) -> list[str]:
        return self._fleet.check_out(relay_id)

    def wait(self, timeout: float) -> bool:
        left = self._next_due.seconds_left(monotonic())
        if left is None or left > timeout:
            return self._wait_for_wake_up(timeout)
        self._wait_for_wake_up(left)
        self._next_due.waited(monotonic())
        return True

    def wake(self) -> None:
        self._wake_pipe.write()

    def sample(self, destination: str | None = None) -> Sample:
        return stats.read_sample(self._session, self._dialect, _lane(destination))

    def stats(self, top: int = 10, destination: str | None = None) -> Stats:
        return stats.read_stats(self._session, self._dialect, top, _lane(destination))

    def destinations(self) -> list[str]:
        """Those that are configured, and those that messages are stored for."""
        stored = stats.stored_destinations(self._session, self._dialect)
        return sorted({*self._destinations, *stored})

    def use_rates(self, rates: Collection[Rate]) -> int:
        return use_rates(self._session, self._dialect, rates)

    def rates(self) -> dict[str, float]:
        return stats.read_rates(self._session, self._dialect)

    def count_by_minute(self, table: str, limit: int) -> list[tuple[Any, ...]]:
        """For the admin's charts, see `stats.count_newest`."""
        return stats.count_newest(self._session, self._dialect, table, limit)

    def count_next_by_minute(self, within: float, limit: int) -> list[tuple[Any, ...]]:
        """For the admin's charts, see `stats.count_next`."""
        return stats.count_next(self._session, self._dialect, within, limit)

    def fleet(self) -> Fleet:
        return self._fleet.read()

    def pause(self, reason: str, paused_by: str, destination: str = "") -> None:
        self._fleet.pause(reason, paused_by, destination)

    def resume(self, destination: str = "") -> bool:
        return self._fleet.resume(destination)

    def scheduled(
        self, task_name: str | None = None, limit: int = 1000, destination: str | None = None
    ) -> list[ScheduledCall]:
        lanes = self._lanes() if destination is None else [_lane(destination)]
        found = [
            call
            for lane in lanes
            for call in waiting.list_scheduled(self._session, self._dialect, lane, task_name, limit)
        ]
        return sorted(found, key=attrgetter("seconds"))[:limit]

    def cancel(self, task_ids: Sequence[str]) -> dict[str, bool]:
        cancelled: dict[str, bool] = {}
        for table in (TASKS, DELIVERIES):
            for task_id, sure in self._waiting(table).cancel(task_ids).items():
                cancelled[task_id] = sure and cancelled.get(task_id, True)
        return cancelled

    def send_now(self, task_ids: Sequence[str]) -> list[str]:
        found = (self._waiting(table).send_now(task_ids) for table in (TASKS, DELIVERIES))
        return list(dict.fromkeys(chain.from_iterable(found)))

    def make_due(self, ids: list[int], table: MessageTable = TASKS) -> None:
        """For the admin's actions, see `Waiting.make_due`."""
        self._waiting(table).make_due(ids)

    def release_keys(self, destination: str, keys: Collection[str]) -> None:
        """After messages with these keys were deleted: make the next one of each key due."""
        writes = Writes(self._session, self._dialect, DELIVERIES, keep=False)
        Order(self._session, self._dialect, writes, destination).release(keys)
        if self._dialect.notifies:
            self._session.run("SELECT pg_notify(%s, %s)", [DELIVERIES.channel, destination])

    def list_dead_letters(self, which: DeadLetters, limit: int = 1000) -> list[DeadLetter]:
        return maintenance.list_dead(self._session, self._dialect, which, limit)

    def keep_failed_task(self, row: Row, failure: Failure) -> None:
        """For `celery_hooks/failed_tasks.py`, see `failed_tasks.insert_failed_task`."""
        insert_failed_task(self._session, self._dialect, row, failure)

    def count_dead_letters(self, which: DeadLetters) -> int:
        return maintenance.count_dead(self._session, self._dialect, which)

    def replay(self, which: DeadLetters, limit: int = 1000) -> int:
        return maintenance.move_to_outbox(self._session, self._dialect, which, limit)

    def purge_dead_letters(self, which: DeadLetters, limit: int = 1000) -> int:
        deleted, freed = maintenance.delete_dead(self._session, self._dialect, which, limit)
        for destination, keys in freed.items():
            self.release_keys(destination, keys)
        return deleted

    def count_published(self, older_than: float) -> int:
        return sum(
            maintenance.count_kept(self._session, self._dialect, lane, older_than)
            for lane in self._lanes()
        )

    def purge_published(self, older_than: float, limit: int = 1000) -> int:
        for lane in self._lanes():
            done = maintenance.delete_kept(self._session, self._dialect, lane, older_than, limit)
            if done:
                return done
        return 0

    def count_expired_entries(self) -> int:
        return maintenance.count_expired(self._session, self._dialect)

    def purge_expired_entries(self, limit: int = 1000) -> int:
        return maintenance.delete_expired(self._session, self._dialect, limit)

    def listen(self) -> None:
        """Connect, and LISTEN where the database and the settings allow that."""
        with self._session.errors():
            self._session.open()
            if self._notify and self._dialect.notifies and not self._session.borrowed:
                self._listener.begin(self._session, pooled=self._dialect.pooled)

    def _lanes(self) -> list[Lane]:
        return [OWN_BROKER, *map(_lane, self.destinations())]

    def _waiting(self, table: MessageTable) -> Waiting:
        return Waiting(self._session, self._dialect, table)

    def _hear(self, payload: str) -> None:
        if payload == HELD_PAYLOAD:
            self._next_due.forget()

    def _wait_for_wake_up(self, timeout: float) -> bool:
        if not self.listening:
            return self._wake_pipe.wait(timeout)
        with self._session.errors():
            if self._listener.heard(self._session):
                return True
            woken = self._wake_pipe.wait(timeout, self._session.raw.fileno())
            return self._listener.heard(self._session) or woken

    def _begin_claims(self) -> bool:
        """Sessions that never claim, those of a standby, never LISTEN."""
        is_first = super()._begin_claims()
        if is_first:
            self.listen()
        return is_first

    def _prepare_session(self, session: Session) -> None:
        self._listener.listening = False
        if not session.borrowed:
            self._dialect.configure_session(session)


def _lane(destination: str | None) -> Lane:
    return OWN_BROKER if destination is None else Lane(DELIVERIES, destination)


def _dialect(alias: str, connection: BaseDatabaseWrapper | None) -> Dialect:
    try:
        vendor = (connection or connections[alias]).vendor
    except ConnectionDoesNotExist:
        raise StoreNotReady(f"database {alias!r}: there is no such alias in DATABASES") from None
    try:
        return DIALECTS[vendor]()
    except KeyError:
        raise StoreNotReady(
            f"database {alias!r}: the outbox needs PostgreSQL, MySQL, MariaDB or SQLite,"
            f" not {vendor}"
        ) from None
