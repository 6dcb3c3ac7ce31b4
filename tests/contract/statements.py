"""The statements that the Store and the enqueue side really execute, as files that a DBA can read.

    python -m tests.contract.statements    # writes docs/reference/sql/*.sql anew

Recorded on the real databases while each operation runs once, named and laid out for reading.
`test_sql_files.py` compares the files with what is executed, white space aside.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.contract.delivery_statements import DeliveryRecording
from tests.contract.sql_layout import laid_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SQL_FILES = Path(__file__).parents[2] / "docs" / "reference" / "sql"
REGENERATE = "python -m tests.contract.statements"
BACKENDS = {"postgresql": "psycopg", "mysql": "mysqlclient", "sqlite": "sqlite"}
MAX_BYTES = 50_000
LARGE = "x" * 40_000


class Recorder:
    """Keeps what an operation executes on a connection, under a name and a purpose."""

    def __init__(self) -> None:
        self.operations: dict[str, tuple[str, list[str]]] = {}

    @contextmanager
    def record(self, connection: Any, name: str, purpose: str) -> Iterator[None]:
        statements: list[str] = []

        def note(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            # Django's names of savepoints have the id of the thread.
            statements.append(re.sub(r'SAVEPOINT "\w+"', "SAVEPOINT one", sql.replace("%%", "%")))
            return execute(sql, *rest)

        with connection.execute_wrapper(note):
            yield
        if statements:
            self.operations[name] = (purpose, statements)

    def leave_out(self, repeated: str, within: str) -> None:
        """Leave the statements of one operation out of others, by a part of their names."""
        _, common = self.operations[repeated]
        for name, (_, statements) in self.operations.items():
            if within in name:
                statements[:] = [sql for sql in statements if sql not in common]


class Recording:
    """Every operation, once, on the database of a backend."""

    def __init__(self, backend: Any) -> None:
        from django.db import connections

        self._backend = backend
        self._connection = connections[backend.alias]
        self._recorder = Recorder()

    def run(self) -> dict[str, tuple[str, list[str]]]:
        deliveries = DeliveryRecording(self._backend, self._connection, self._recorder)
        for part in (
            self._enqueue,
            self._enqueue_keyed,
            self._claim,
            self._settle,
            self._hold,
            self._check_in,
            self._count,
            self._maintain,
            self._protect,
            deliveries.enqueue,
            deliveries.claim,
            deliveries.order,
            deliveries.pace,
            deliveries.look,
        ):
            self._backend.clear()
            part()
        self._backend.clear()
        return self._recorder.operations

    def _store(self, **options: Any) -> Any:
        store = self._backend.store(**options)
        store.check()  # connects
        store._begin_claims()
        return store

    def _record(self, store: Any, name: str, purpose: str) -> Any:
        return self._recorder.record(store._session.wrapper, name, purpose)

    def _claimed(self, store: Any, count: int) -> list[Any]:
        self._backend.clear()
        self._backend.add(count)
        store.check()
        return list(store.claim(count, 60, "relay"))

    def _enqueue(self) -> None:
        from django_integration.enqueue.rows import insert, notify_relay
        from django_integration.schema import Row, When

        row = Row("id", "tests.task", "[]", "{}", "{}", *[None] * 6)
        held = row._replace(when=When(None, 3600.0))
        record = partial(self._recorder.record, self._connection)
        with record("enqueue one", "A call, in the caller's transaction."):
            insert(self._connection, [row])
        with record("enqueue many", "Calls of a bulk or a group, here two."):
            insert(self._connection, [row, row])
        with record("enqueue one, held", "A call with an eta or a countdown: due later."):
            insert(self._connection, [held])
        with record("enqueue many, held", "Calls of which at least one is due later, here two."):
            insert(self._connection, [held, row])
        if self._connection.vendor != "postgresql":
            return
        with record("enqueue and notify", "A call that wakes the relay."):
            insert(self._connection, [row], notify=True)
        with record("enqueue and notify, held", "Wakes the relay if the call is due soon."):
            insert(self._connection, [held], notify=True)
        with record("notify", "Wakes the relay after further calls."):
            notify_relay(self._connection)

    def _enqueue_keyed(self) -> None:
        from django_integration.enqueue.keyed import KeyedRows, store_keyed
        from django_integration.enqueue.rows import insert
        from django_integration.schema import Key, Row

        row = Row("id", "tests.task", "[]", "{}", "{}", *[None] * 6)
        record = partial(self._recorder.record, self._connection)

        def store(task_id: str, *, replace: bool) -> None:
            key = Key("key#digest", replace, SimpleNamespace(id=task_id))
            keyed = [row._replace(task_id=task_id, key=key)]
            store_keyed(self._connection, keyed, partial(insert, self._connection))

        with record("enqueue with a key", "A call whose key is free."):
            store("1", replace=False)
        with record("enqueue with a key, kept", "A call with this key waits, and is locked."):
            store("2", replace=False)
        with record("enqueue with a key, replaced", "The newest call takes its place."):
            store("3", replace=True)
        with record("free a key", "Of a row that is in flight or published."):
            KeyedRows(self._connection, in_transaction=False)._free(["key#digest"])

    def _protect(self) -> None:
        from django_integration.inbox.entries import Entry, StoredResult, entered, record_result

        entry = Entry(self._connection.alias, "key#digest", "tests.task", 0.001)
        record = partial(self._recorder.record, self._connection)
        around = "`@once`: an entry before the work, and the result after it."
        with record("once", around), entered(entry):
            record_result(entry, StoredResult("application/json", "utf-8", b"7"))
        again = "The same statement waits for the first, and gets its result."
        with record("once, a duplicate", again), entered(entry):
            pass
        store = self._store()
        with self._record(store, "count inbox entries", "Before a purge."):
            store.count_expired_entries()
        with self._record(store, "purge inbox entries", "Delete entries that have expired."):
            store.purge_expired_entries()

    def _claim(self) -> None:
        store = self._backend.store()
        store._session.wrapper.ensure_connection()
        store._session.opened = 1
        with self._record(store, "open session", "The first statements of a relay's session."):
            store._prepare_session(store._session)
        with self._record(store, "listen", "Before the first claim of a session."):
            store._begin_claims()
        self._backend.add(3)
        with self._record(store, "claim", "Lease due rows; a full scan of the due index."):
            store.claim(1, 60, "relay", max_bytes=MAX_BYTES)
        store._watermark.record_full_scan(0.0, 1e9)  # the next full scan is far in the future
        if store._dialect.watermark:
            with self._record(
                store, "claim from watermark", "Lease due rows, from where the last claim ended."
            ):
                store.claim(1, 60, "relay", max_bytes=MAX_BYTES)
        store = self._store()
        with self._record(store, "claim and adopt", "A claim that may take its own leased rows."):
            store.claim(1, 60, "relay", max_bytes=MAX_BYTES, adopt=True)
        without_orphans = "A claim that takes over no expired lease, after the database was away."
        with self._record(store, "claim without orphans", without_orphans):
            store.claim(1, 60, "relay", max_bytes=MAX_BYTES, orphans=False)
        self._claim_large_rows(self._store())

    def _claim_large_rows(self, store: Any) -> None:
        if store._dialect.vendor != "postgresql":
            self._backend.clear()
            self._backend.add(1, args=LARGE)
            store.check()
            with self._record(store, "claim large rows", "Reads the contents of large rows last."):
                store.claim(10, 60, "relay", max_bytes=MAX_BYTES)
        self._backend.clear()
        self._backend.add(1, args=LARGE)
        (message,) = store.claim(10, 60, "relay", max_bytes=100)
        with self._record(
            store, "begin attempt", "Count an attempt before it is made; then load a large message."
        ):
            store.begin_attempt(message, "relay")

    def _settle(self) -> None:
        from celery_outbox_steps.messages import Dead, Deferred, Expired, Published, Retry

        store, keeping = self._store(), self._store(retention=60)
        outcomes = {
            "settle published": ("Delete published rows.", store, Published),
            "settle published, kept": ("Keep published rows.", keeping, Published),
            "settle retry": ("A message failed.", store, lambda row: Retry(row, "no", 1.0)),
            "settle deferred": ("The broker is away.", store, lambda row: Deferred(row, "no", 1.0)),
            "settle dead": ("Move to the dead letters.", store, lambda row: Dead(row, "no", 5)),
            "settle expired": ("Delete held calls that expired.", store, Expired),
        }
        for name, (purpose, chosen, outcome) in outcomes.items():
            rows = self._claimed(chosen, 2)
            with self._record(chosen, name, purpose):
                chosen.settle([outcome(row) for row in rows], "relay")
        ids = [row.id for row in self._claimed(store, 2)]
        with self._record(
            store, "renew", "A batch takes long; which rows it lost, if it lost any."
        ):
            store.renew([*ids, 0], 60, "relay")
        with self._record(store, "release", "Give claimed rows back, due at once."):
            store.release(ids, "relay")

    def _hold(self) -> None:
        from django_integration.schema import TASKS, When
        from django_integration.store import stats
        from django_integration.store.waiting import Waiting

        store = self._store()
        session, dialect = store._session, store._dialect
        record = partial(self._record, store)
        self._backend.add(1, due_in=3600.0, task_id="id")
        with record("next due", "After a claim that found nothing: how long to wait."):
            stats.seconds_until_next(session, dialect, since=0)
        with record("list scheduled", "`celery outbox scheduled`."):
            store.scheduled("tests.*", 10)
        with record("reschedule", "`app.outbox.reschedule()`, in the caller's transaction."):
            Waiting(session, dialect, TASKS).reschedule("id", When(None, 7200.0))
        with record("send now", "`celery outbox send-now` and `app.outbox.send_now()`."):
            store.send_now(["id"])
        with record("cancel", "`celery outbox cancel`, `revoke()` in the caller's transaction."):
            store.cancel(["id"])

    def _check_in(self) -> None:
        from celery_outbox_steps.fleet import REMEMBERED, SILENCE

        store = self._store()
        record = partial(self._record, store)
        with record("look", "The first statement of each check-in: slots, members, pause."):
            store._fleet.look("a")
        with record("first check-in", "After the look; a new member takes a free slot."):
            self._member(store, "a")
        with record("check-in with a slot", "After the look, every few seconds."):
            self._member(store, "a")
        self._member(store, "b")
        with record("check-in without a slot", "After the look; once per second, of all together."):
            self._member(store, "b")
        self._backend.pass_time(SILENCE + 1)
        with record("check-in after a silence", "After the look; those who were alive still are."):
            self._member(store, "a")
        self._backend.pass_time(REMEMBERED * 2)
        with record("check-in in place of a dead member", "After the look; old rows are deleted."):
            self._member(store, "c")
        self._recorder.leave_out("look", "check-in")
        with record("check out", "A relay stops, and learns whom to tell."):
            store.check_out("c")
        with record("fleet", "The members that `celery outbox status` and the admin show."):
            store.fleet()
        with record("pause", "Of the outbox, by an operator."):
            store.pause("reason", "operator")
        with record("resume", "The end of the pause."):
            store.resume()

    def _member(self, store: Any, name: str) -> None:
        from celery_outbox_steps.fleet import RELAYING, Member

        store.check_in(Member(name, "celery@host", "1", RELAYING), relays=1, wants_slot=True)

    def _count(self) -> None:
        from django_integration.schema import DEAD_LETTER, DUE_TIME_REACHED, OUTBOX, OWN_BROKER
        from django_integration.store.stats import planned_rows

        store = self._store()
        with self._record(store, "sample", "The gauges."):
            store.sample()
        with self._record(store, "stats", "The numbers of `celery outbox status` and the admin."):
            store.stats()
        if store._dialect.explain:
            with self._record(store, "estimate", "Instead of a count that reached its cap."):
                planned_rows(store._session, store._dialect, OWN_BROKER, DUE_TIME_REACHED)
        with self._record(store, "charts", "The charts of the admin."):
            store.count_by_minute(OUTBOX, 10)
            store.count_by_minute(DEAD_LETTER, 10)
            store.count_next_by_minute(3600.0, 10)

    def _maintain(self) -> None:
        from celery_outbox_steps.messages import Dead, Published
        from celery_outbox_steps.store import DeadLetters

        store, keeping = self._store(), self._store(retention=60)
        store.settle([Dead(row, "no", 5) for row in self._claimed(store, 2)], "relay")
        which = DeadLetters(task_name="tests.*", newer_than=3600)
        with self._record(store, "list dead letters", "`celery outbox dead`."):
            store.list_dead_letters(DeadLetters(task_name="tests.*", kind="message"), 10)
        with self._record(store, "count dead letters", "Before a replay or a purge."):
            store.count_dead_letters(which)
        with self._record(store, "replay", "Move dead letters back into the outbox."):
            store.replay(which)
        rows = store.claim(2, 60, "relay")
        store.settle([Dead(row, "no", 5) for row in rows], "relay")
        self._backend.pass_time(10)
        with self._record(store, "purge dead letters", "Delete old dead letters."):
            store.purge_dead_letters(DeadLetters(older_than=5))
        keeping.settle([Published(row) for row in self._claimed(keeping, 2)], "relay")
        self._backend.pass_time(10)
        with self._record(keeping, "count published", "Before a purge."):
            keeping.count_published(5)
        with self._record(keeping, "purge published", "Delete old published rows."):
            keeping.purge_published(5)
        self._keep_failed_task(store)

    def _keep_failed_task(self, store: Any) -> None:
        from django_integration.schema import Row
        from django_integration.store.failed_tasks import Failure

        row = Row("id", "tests.task", "[]", "{}", "{}", *[None] * 6)
        store.check()
        with self._record(store, "keep failed task", "A task failed for good, in its worker."):
            store.keep_failed_task(row, Failure("no", "Traceback", 1))


def as_file(operations: dict[str, tuple[str, list[str]]]) -> str:
    """The text of a file: each operation with its name, its purpose and its statements."""
    parts = []
    for name, (purpose, statements) in operations.items():
        sql = ";\n".join(laid_out(statement) for statement in statements)
        parts.append(f"-- {name}: {purpose}\n{sql};\n")
    return "\n".join(parts)


def without_white_space(text: str) -> str:
    return re.sub(r"\s+", "", text)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.proj.settings")
    import django

    django.setup()
    from tests.contract import backends

    SQL_FILES.mkdir(parents=True, exist_ok=True)
    for vendor, name in BACKENDS.items():
        with (
            tempfile.TemporaryDirectory() as directory,
            backends.opened(name, Path(directory)) as backend,
        ):
            text = as_file(Recording(backend).run())
        (SQL_FILES / f"{vendor}.sql").write_text(text)
        print(f"written: {vendor}.sql")


if __name__ == "__main__":
    main()
