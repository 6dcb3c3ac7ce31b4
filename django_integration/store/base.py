"""The Store on a Django database: claim, settle, and what a relay needs around them.

Keeps the contract of `celery_outbox_steps.store`: every write of a relay is fenced with its id,
every time is the database's, and no transaction stays open between two calls. What differs between
databases is a `Dialect`; what a relay writes is in `writes.py`, counting in `stats.py`, replay and
purge in `maintenance.py`, members in `fleet.py`. docs/reference/sql shows the statements in full.
"""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from celery_outbox_steps.errors import StoreNotReady
from django_integration.store import maintenance, stats, waiting
from django_integration.store.dialect import ClaimRequest, Dialect, LeasedRow
from django_integration.store.failed_tasks import insert_failed_task
from django_integration.store.fleet import FleetTables
from django_integration.store.listen import Listener, WakePipe
from django_integration.store.mysql import MySQL
from django_integration.store.next_due import NextDue
from django_integration.store.postgresql import PostgreSQL
from django_integration.store.session import Session
from django_integration.store.setup import missing_migrations
from django_integration.store.sqlite import SQLite
from django_integration.store.watermark import Start, Watermark
from django_integration.store.writes import Writes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from celery_outbox_steps.fleet import Fleet, Member, Place
    from celery_outbox_steps.messages import ClaimedMessage, Outcome
    from celery_outbox_steps.store import DeadLetter, DeadLetters, Sample, ScheduledCall, Stats
    from django_integration.schema import Row
    from django_integration.store.failed_tasks import Failure

DIALECTS: dict[str, type[Dialect]] = {"postgresql": PostgreSQL, "mysql": MySQL, "sqlite": SQLite}


class DjangoStore:
    """The outbox behind one database alias, on a connection of its own.

    A given `connection` is used instead (by tests and the admin): as it is, never closed, and
    without LISTEN. `retention` in seconds keeps published rows instead of deleting them.
    """

    def __init__(
        self,
        alias: str,
        *,
        retention: float | None = None,
        notify: bool = True,
        connection: BaseDatabaseWrapper | None = None,
    ) -> None:
        self.name = alias
        self.retention = retention
        self._notify = notify
        self._watermark = Watermark()
        self._next_due = NextDue()
        self._listener = Listener(self._next_due.forget)
        self._wake_pipe = WakePipe(self._next_due.forget)
        self._has_claimed = False
        self._dialect = _dialect(alias, connection)
        self._session = Session(
            alias,
            self._prepare_session,
            connection=connection,
            begin=self._dialect.begin_transaction,
            options=self._dialect.options,
        )
        self._writes = Writes(self._session, self._dialect, keep=retention is not None)
        self._fleet = FleetTables(self._session, self._dialect)

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

    def claim(
        self,
        limit: int,
        lease: float,
        relay_id: str,
        *,
        max_bytes: int | None = None,
        adopt: bool = False,
        orphans: bool = True,
    ) -> list[ClaimedMessage]:
        """Claim what is due. If there is nothing, the time of the next row is known afterwards."""
        most = sys.maxsize if max_bytes is None else max_bytes
        request = ClaimRequest(limit, lease, relay_id, most, adopt, orphans)
        began = monotonic()
        leased = self._lease(request)
        leased.sort()
        if not leased:
            self._look_ahead(began)
        elif self._dialect.watermark:
            self._watermark.advance(leased[0].position, leased[-1].position, len(leased))
        return [each if each.payload is None else _copy_payload(each) for _, each in leased]

    def begin_attempt(self, message: ClaimedMessage, relay_id: str) -> ClaimedMessage | None:
        counted = self._writes.count_attempt(message, relay_id)
        return counted if counted is None or counted.payload is None else _copy_payload(counted)

    def settle(self, outcomes: Sequence[Outcome], relay_id: str) -> int:
        return len(outcomes) - self._writes.record_outcomes(outcomes, relay_id)

    def release(self, ids: Sequence[int], relay_id: str) -> int:
        return self._writes.clear_leases(ids, relay_id)

    def check_in(self, member: Member, *, relays: int | None, wants_slot: bool) -> Place:
        return self._fleet.check_in(member, relays, wants_slot=wants_slot)

    def check_out(self, relay_id: str) -> list[str]:
        return self._fleet.check_out(relay_id)

    def renew(self, ids: Sequence[int], lease: float, relay_id: str) -> list[int]:
        return self._writes.renew_leases(ids, lease, relay_id)

    def wait(self, timeout: float) -> bool:
        left = self._next_due.seconds_left(monotonic())
        if left is None or left > timeout:
            return self._wait_for_wake_up(timeout)
        self._wait_for_wake_up(left)
        self._next_due.waited(monotonic())
        return True

    def wake(self) -> None:
        self._wake_pipe.write()

    def sample(self) -> Sample:
        return stats.read_sample(self._session, self._dialect)

    def stats(self, top: int = 10) -> Stats:
        return stats.read_stats(self._session, self._dialect, top)

    def count_by_minute(self, table: str, limit: int) -> list[tuple[Any, ...]]:
        """For the admin's charts, see `stats.count_newest`."""
        return stats.count_newest(self._session, self._dialect, table, limit)

    def count_next_by_minute(self, within: float, limit: int) -> list[tuple[Any, ...]]:
        """For the admin's charts, see `stats.count_next`."""
        return stats.count_next(self._session, self._dialect, within, limit)

    def fleet(self) -> Fleet:
        return self._fleet.read()

    def pause(self, reason: str, paused_by: str) -> None:
        self._fleet.pause(reason, paused_by)

    def resume(self) -> bool:
        return self._fleet.resume()

    def scheduled(self, task_name: str | None = None, limit: int = 1000) -> list[ScheduledCall]:
        return waiting.list_scheduled(self._session, self._dialect, task_name, limit)

    def cancel(self, task_ids: Sequence[str]) -> dict[str, bool]:
        return waiting.cancel(self._session, self._dialect, task_ids)

    def send_now(self, task_ids: Sequence[str]) -> list[str]:
        return waiting.send_now(self._session, self._dialect, task_ids)

    def make_due(self, ids: list[int]) -> None:
        """For the admin's actions, see `waiting.make_due`."""
        waiting.make_due(self._session, self._dialect, ids)

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
        return maintenance.delete_dead(self._session, self._dialect, which, limit)

    def count_published(self, older_than: float) -> int:
        return maintenance.count_kept(self._session, self._dialect, older_than)

    def purge_published(self, older_than: float, limit: int = 1000) -> int:
        return maintenance.delete_kept(self._session, self._dialect, older_than, limit)

    def count_expired_entries(self) -> int:
        return maintenance.count_expired(self._session, self._dialect)

    def purge_expired_entries(self, limit: int = 1000) -> int:
        return maintenance.delete_expired(self._session, self._dialect, limit)

    def close(self) -> None:
        self._session.close()

    def listen(self) -> None:
        """Connect, and LISTEN where the database and the settings allow that."""
        with self._session.errors():
            self._session.open()
            if self._notify and self._dialect.notifies and not self._session.borrowed:
                self._listener.begin(self._session, pooled=self._dialect.pooled)

    def _wait_for_wake_up(self, timeout: float) -> bool:
        if not self.listening:
            return self._wake_pipe.wait(timeout)
        with self._session.errors():
            if self._listener.heard(self._session):
                return True
            woken = self._wake_pipe.wait(timeout, self._session.raw.fileno())
            return self._listener.heard(self._session) or woken

    def _look_ahead(self, began: float) -> None:
        """Read when the next row is due, if that is not known: also of those that have fallen due
        since a claim that began then."""
        now = monotonic()
        if not self._session.borrowed and self._next_due.should_look(now):
            seconds = stats.seconds_until_next(self._session, self._dialect, now - began)
            self._next_due.record(seconds, monotonic())

    def _begin_claims(self) -> bool:
        """Whether this is the first claim of a session. Others, of a standby, never LISTEN."""
        if self._has_claimed and self._session.is_open:
            return False
        self.listen()
        self._has_claimed = True
        return True

    def _prepare_session(self, session: Session) -> None:
        self._has_claimed = self._listener.listening = False
        if not session.borrowed:
            self._dialect.configure_session(session)

    def _lease(self, request: ClaimRequest) -> list[LeasedRow]:
        """From the watermark on; with a full scan if that finds nothing, or in a new session.

        The last session may have leased rows without receiving them, or may have ended in a crash
        of the server that lost its leases.
        """
        start = None if self._begin_claims() else self._watermark.start(monotonic())
        leased = self._lease_from(start, request)
        if not leased and start is not None and self._watermark.allows_full_scan(monotonic()):
            leased = self._lease_from(None, request)
        return leased

    def _lease_from(self, start: Start | None, request: ClaimRequest) -> list[LeasedRow]:
        began = monotonic()
        leased = self._dialect.lease_rows(self._session, request, start)
        if start is None:
            self._watermark.record_full_scan(began, monotonic())
        return leased


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


def _copy_payload(message: ClaimedMessage) -> ClaimedMessage:
    """As bytes: some drivers return a view of their own memory."""
    return message._replace(payload=bytes(message.payload or b""))
