"""The Store on a Django database: claim, settle, and what a relay needs around them.

Keeps the contract of `celery_outbox_steps.store`: every write of a relay names it in `claimed_by`,
every time is the database's, and no transaction stays open between two calls. What differs between
databases is a `Dialect`; counting is in `counts.py`, replay and purge in `upkeep.py`.
"""

# ruff: noqa: S608  SQL text is joined from names of ours; values are always parameters
from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from celery_outbox_steps.errors import StoreNotReady
from celery_outbox_steps.messages import (
    ClaimedMessage,
    Dead,
    Deferred,
    Outcome,
    Published,
    Retry,
)
from django_integration import signals
from django_integration.store import counts, upkeep
from django_integration.store.dialect import (
    DEAD_LETTER,
    OUTBOX,
    UNLEASED,
    Dialect,
    Rows,
    content_columns,
)
from django_integration.store.listen import Bell, Listener
from django_integration.store.mysql import MySQL
from django_integration.store.postgresql import PostgreSQL
from django_integration.store.session import Session
from django_integration.store.sqlite import SQLite
from django_integration.store.watermark import Start, Watermark

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from celery_outbox_steps.store import DeadLetters, Sample, Stats

PAYLOAD = ClaimedMessage._fields.index("payload")
DIALECTS: dict[str, type[Dialect]] = {"postgresql": PostgreSQL, "mysql": MySQL, "sqlite": SQLite}


class DjangoStore:
    """The outbox behind one database alias, on a connection of its own.

    `connection` lends one instead (tests inside a transaction): it is used as it is, never closed,
    and not listened on. `retention` in seconds keeps published rows instead of deleting them.
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
        self._listener = Listener()
        self._bell = Bell()
        self._watermark = Watermark()
        self._dialect = _dialect(alias, connection)
        self._session = Session(
            alias,
            self._opened,
            connection=connection,
            begin=self._dialect.begin,
            options=self._dialect.options,
        )

    @property
    def listening(self) -> bool:
        """Will a NOTIFY end a wait?"""
        return self._listener.listening and self._session.is_open

    @property
    def blocks_event_loop(self) -> bool:
        """Would this driver hold up all greenlets of a gevent worker?"""
        return self._dialect.blocks_event_loop(self._session.wrapper)

    def check(self) -> None:
        with self._session.errors():
            wrapper = self._session.open()
            complaint = self._dialect.check(wrapper)
            with wrapper.cursor() as cursor:
                tables = set(wrapper.introspection.table_names(cursor))
        missing = {OUTBOX, DEAD_LETTER} - tables
        if missing:
            complaint = complaint or (
                f"no table {', '.join(sorted(missing))}; run: python manage.py migrate"
                f" --database={self.name} celery_outbox"
            )
        if complaint:
            raise StoreNotReady(f"database {self.name!r}: {complaint}")

    def claim(self, limit: int, lease: float, relay_id: str) -> list[ClaimedMessage]:
        start = self._watermark.start(time.monotonic())
        rows = self._claim(limit, lease, relay_id, start)
        if start is not None and len(rows) < limit and self._watermark.may_look(time.monotonic()):
            rows += self._claim(limit - len(rows), lease, relay_id, None)
        rows.sort(key=_by_due)
        if rows and self._dialect.watermark:
            self._watermark.claimed(rows[0][-1], rows[-1][-1], len(rows))
        return [_message(row) for row in rows]

    def settle(self, outcomes: Sequence[Outcome], relay_id: str) -> int:
        work = _Work(outcomes)
        if work.only_published and self.retention is None:
            settled = self._delete(work.published, relay_id)
        else:
            with self._session.transaction():
                settled = self._settle(work, relay_id)
        signals.emit_settled(outcomes, sender=DjangoStore)
        return len(outcomes) - settled

    def release(self, ids: Sequence[int], relay_id: str) -> int:
        return self._update(UNLEASED, [], ids, relay_id)

    def renew(self, ids: Sequence[int], lease: float, relay_id: str) -> int:
        return self._update(f"claimed_until = {self._dialect.later}", [lease], ids, relay_id)

    def wait(self, timeout: float) -> bool:
        if not self.listening:
            return self._bell.wait(timeout)
        with self._session.errors():
            if self._listener.heard(self._session):
                return True
            woken = self._bell.wait(timeout, self._session.raw.fileno())
            return self._listener.heard(self._session) or woken

    def wake(self) -> None:
        self._bell.ring()

    def sample(self) -> Sample:
        return counts.sample(self._session, self._dialect)

    def stats(self, top: int = 10) -> Stats:
        return counts.stats(self._session, self._dialect, top)

    def count_dead_letters(self, which: DeadLetters) -> int:
        return upkeep.count_dead_letters(self._session, self._dialect, which)

    def replay(self, which: DeadLetters, limit: int = 1000) -> int:
        return upkeep.replay(self._session, self._dialect, which, limit)

    def purge_dead_letters(self, which: DeadLetters, limit: int = 1000) -> int:
        return upkeep.purge_dead_letters(self._session, self._dialect, which, limit)

    def count_published(self, older_than: float) -> int:
        return upkeep.count_published(self._session, self._dialect, older_than)

    def purge_published(self, older_than: float, limit: int = 1000) -> int:
        return upkeep.purge_published(self._session, self._dialect, older_than, limit)

    def close(self) -> None:
        self._session.close()

    def _opened(self, session: Session) -> None:
        if session.borrowed:
            return
        self._dialect.opened(session)
        if self._notify and self._dialect.notifies:
            self._listener.begin(session, pooled=self._dialect.pooled)

    def _claim(self, limit: int, lease: float, relay_id: str, start: Start | None) -> Rows:
        began = time.monotonic()
        rows = self._dialect.claim(self._session, limit, lease, relay_id, start)
        if start is None:
            self._watermark.looked(began, time.monotonic())
        return rows

    def _settle(self, work: _Work, relay_id: str) -> int:
        settled = self._publish(work.published, relay_id)
        for (error, delay, retries), ids in work.again.items():
            settled += self._postpone(ids, error, delay, retries, relay_id)
        for error, ids in work.dead.items():
            settled += self._bury(ids, error, relay_id)
        return settled

    def _publish(self, ids: Sequence[int], relay_id: str) -> int:
        if self.retention is None:
            return self._delete(ids, relay_id)
        now = self._dialect.now
        return self._update(
            f"published_at = {now}, updated_at = {now}, due_at = NULL, {UNLEASED}",
            [],
            ids,
            relay_id,
        )

    def _postpone(
        self, ids: Sequence[int], error: str, delay: float, retries: int, relay_id: str
    ) -> int:
        return self._update(
            f"retries = retries + %s, due_at = {self._dialect.later}, last_error = %s,"
            f" updated_at = {self._dialect.now}, {UNLEASED}",
            [retries, delay, self._dialect.text(error)],
            ids,
            relay_id,
        )

    def _bury(self, ids: Sequence[int], error: str, relay_id: str) -> int:
        """Copy and delete. The copy locks the rows, so nobody takes them over in between."""
        which, params = self._dialect.ids(ids)
        columns = ", ".join(content_columns())
        self._session.run(
            f"INSERT INTO {DEAD_LETTER} ({columns}, dead_at, failure_reason)"
            f" SELECT {columns}, {self._dialect.now}, %s FROM {OUTBOX}{self._dialect.by_id}"
            f" WHERE {which} AND claimed_by = %s{self._dialect.for_update}",
            [self._dialect.text(error), *params, relay_id],
        )
        return self._delete(ids, relay_id)

    def _update(self, changes: str, values: list[Any], ids: Sequence[int], relay_id: str) -> int:
        """The one way a relay changes rows: only those that it holds."""
        if not ids:
            return 0
        which, params = self._dialect.ids(ids)
        table = f"{OUTBOX}{self._dialect.by_id}"
        sql = f"UPDATE {table} SET {changes} WHERE {which} AND claimed_by = %s"
        return self._session.run(sql, [*values, *params, relay_id])

    def _delete(self, ids: Sequence[int], relay_id: str) -> int:
        """The one way a relay deletes rows: only those that it holds."""
        if not ids:
            return 0
        sql, params = self._dialect.delete(OUTBOX, ids)
        return self._session.run(f"{sql} AND claimed_by = %s", [*params, relay_id])


class _Work:
    """Outcomes by what has to be written for them, so that equal ones share a statement."""

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self.published: list[int] = []
        self.again: dict[tuple[str, float, int], list[int]] = defaultdict(list)
        self.dead: dict[str, list[int]] = defaultdict(list)
        for outcome in outcomes:
            self._sort(outcome)

    @property
    def only_published(self) -> bool:
        return not self.again and not self.dead

    def _sort(self, outcome: Outcome) -> None:
        match outcome:
            case Published(message):
                self.published.append(message.id)
            case Retry(message, error, delay):
                self.again[error, delay, 1].append(message.id)
            case Deferred(message, error, delay):
                self.again[error, delay, 0].append(message.id)
            case Dead(message, error):
                self.dead[error].append(message.id)


def _dialect(alias: str, connection: BaseDatabaseWrapper | None) -> Dialect:
    try:
        vendor = (connection or connections[alias]).vendor
    except ConnectionDoesNotExist:
        raise StoreNotReady(
            f"database {alias!r}: there is none of this name in DATABASES"
        ) from None
    try:
        return DIALECTS[vendor]()
    except KeyError:
        raise StoreNotReady(
            f"database {alias!r}: the outbox needs PostgreSQL, MySQL, MariaDB or SQLite,"
            f" not {vendor}"
        ) from None


def _by_due(row: tuple[Any, ...]) -> tuple[Any, int]:
    return row[-1], row[0]


def _message(row: tuple[Any, ...]) -> ClaimedMessage:
    if row[PAYLOAD] is None:
        return ClaimedMessage._make(row[:-1])
    # Drivers hand out bytes or a view of their own memory.
    return ClaimedMessage._make((*row[:PAYLOAD], bytes(row[PAYLOAD]), *row[PAYLOAD + 1 : -1]))
