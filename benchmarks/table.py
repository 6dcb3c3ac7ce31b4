"""The outbox tables under measurement, ours and the peer's, filled by the measuring program.

500 rows are stored by real task calls; a backlog is made of copies of them, inserted by the
database in one transaction, and dated as if they had arrived at 2,000 per second.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections, transaction
from django.db.utils import ConnectionHandler

from benchmarks.processes import ContenderError, run_agent
from benchmarks.project.settings import database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

TEMPLATES = 500
PER_SECOND = 2000
TIMEOUT = 60.0
MOST_COPIES = 2000  # times 500 rows: a million

DATED = {
    "postgresql": "clock_timestamp() + {} * interval '1 second'",
    "mysql": "UTC_TIMESTAMP(6) + INTERVAL {} * 1000000 MICROSECOND",
    "sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', ({}) || ' seconds')",
}


class Kind(NamedTuple):
    """What the rows of a table are."""

    table: str = "celery_outbox"
    agent: str = "templates"
    """Stores the rows that all others are copies of."""
    notified: str = ""
    """What PostgreSQL's NOTIFY names."""
    changes: Mapping[str, str] = MappingProxyType({})
    """Columns in which copies differ, with their SQL. `n` is the number of the copy."""


TASKS = Kind()
EVENTS = Kind("celery_outbox_delivery", "events", "events", {"order_key": "NULL"})
KEYED_EVENTS = EVENTS._replace(changes={"order_key": "floor(random() * 1000)::text"})
"""1,000 keys in no particular order: a batch has several messages of some of them."""


class Table:
    """The table of one kind of messages in one database, on one side."""

    def __init__(self, where: str, side: str = "ours", kind: Kind = TASKS) -> None:
        self.where, self.side, self.name = where, side, kind.table
        self._kind = kind
        self.vendor = where.partition(":")[0]
        if where not in connections.settings:
            connections.settings[where] = ConnectionHandler({"default": database(where)}).settings[
                "default"
            ]
        self._payloads: set[int] = set()

    def execute(self, sql: str, params: list[Any] | None = None) -> list[tuple[Any, ...]]:
        with connections[self.where].cursor() as cursor:
            cursor.execute(sql, params)
            return cursor.fetchall() if cursor.description else []

    def reset(self) -> None:
        """Remove all rows, and what deleted ones leave in the table."""
        if self.vendor == "sqlite":
            self.execute(f"DELETE FROM {self.name}")
        else:
            self.execute(f"TRUNCATE TABLE {self.name}")

    def fill(self, count: int, payload: int = 100, *, parked: int = 0, held: int = 0) -> None:
        """Add `count` due rows, `parked` ones that back off and `held` ones; all appear at the same
        moment."""
        self.have_templates(payload)
        with transaction.atomic(self.where):
            self._copy(payload, parked, self._parking())
            self._copy(payload, held, self._holding())
            self._copy(payload, count, self._dating(count))
            if self.vendor == "postgresql":
                self.execute(f"ANALYZE {self.name}")
                self.execute(f"NOTIFY {self.name}, '{self._kind.notified}'")

    def top_up(self, count: int) -> None:
        """Refill to `count` due rows after a measurement, and remove the dead ones."""
        if self.side == "ours":
            self._forget_relays()
        due = "due_at <= now()" if self.side == "ours" else "retry_after IS NULL"
        (there,) = self.execute(f"SELECT count(*) FROM {self.name} WHERE {due}")[0]
        if there < count:
            self.fill(count - there)
        self.execute(f"VACUUM ANALYZE {self.name}")

    def count(self) -> int:
        return int(self.execute(f"SELECT count(*) FROM {self.name}")[0][0])

    def wait_until_empty(self) -> None:
        _wait(lambda: not self.count(), f"{self.where} was not emptied")

    def wait_until_alone(self) -> None:
        """Until no other session uses this PostgreSQL database."""
        others = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        _wait(lambda: not self.execute(others)[0][0], f"another session stayed in {self.where}")

    @contextmanager
    def old_snapshot(self) -> Iterator[None]:
        """Hold a snapshot in another session, taken at the start of the block."""
        other = connections.create_connection(self.where)
        with other.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT 1")  # takes the snapshot, and no lock on the table
            try:
                yield
            finally:
                cursor.execute("ROLLBACK")
        other.close()

    def have_templates(self, payload: int) -> None:
        if payload in self._payloads:
            return
        run_agent(self._kind.agent, self.side, self.where, str(TEMPLATES), str(payload))
        for name in (f"bench_template_{payload}", "bench_series"):
            self.execute(f"DROP TABLE IF EXISTS {name}")
        self.execute(f"CREATE TABLE bench_template_{payload} AS SELECT * FROM {self.name}")
        self.execute("CREATE TABLE bench_series (n integer)")
        numbers = ", ".join(f"({n})" for n in range(1, MOST_COPIES + 1))
        self.execute(f"INSERT INTO bench_series (n) VALUES {numbers}")
        self.reset()
        self._payloads.add(payload)

    def _forget_relays(self) -> None:
        """Remove what a killed relay leaves: its slot, which the next one would wait for, and rows
        in its name, which the next one would publish one by one once their lease has ended."""
        self.execute("DELETE FROM celery_outbox_relay")
        self.execute(f"DELETE FROM {self.name} WHERE claimed_by IS NOT NULL")

    def _copy(self, payload: int, count: int, changed: dict[str, str]) -> None:
        names = [name for name in self._columns(payload) if name != "id"]
        changed = {**self._kind.changes, **changed}
        values = [changed.get(name, name) for name in names]
        sql = (
            f"INSERT INTO {self.name} ({', '.join(names)}) SELECT {', '.join(values)}"
            f" FROM bench_template_{payload} CROSS JOIN bench_series"
            f" WHERE n <= %s ORDER BY n LIMIT %s"
        )
        if count:
            self.execute(sql, [-(-count // TEMPLATES), count])

    def _columns(self, payload: int) -> list[str]:
        with connections[self.where].cursor() as cursor:
            cursor.execute(f"SELECT * FROM bench_template_{payload} LIMIT 0")
            return [column[0] for column in cursor.description]

    def _dating(self, count: int) -> dict[str, str]:
        steps = -(-count // TEMPLATES)
        date = DATED[self.vendor].format(f"((n - {steps}) * {TEMPLATES / PER_SECOND})")
        return {"created_at": date, **({"due_at": date} if self.side == "ours" else {})}

    def _parking(self) -> dict[str, str]:
        now, later = (DATED[self.vendor].format(seconds) for seconds in (0, 3600))
        if self.side == "ours":
            return {"due_at": later, "updated_at": now, "retries": "1"}
        return {"retry_after": later, "updated_at": now, "retries": "1"}

    def _holding(self) -> dict[str, str]:
        """What a call with a countdown of an hour stores; only our table knows such rows."""
        later = DATED[self.vendor].format(3600)
        return {"due_at": later, "eta": later}


def _wait(done: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not done():
        if time.monotonic() > deadline:
            raise ContenderError(f"{problem} within {TIMEOUT:g} seconds")
        time.sleep(0.01)
