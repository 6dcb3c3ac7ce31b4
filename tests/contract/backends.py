"""The stores under test, each with the same handles: add rows, look at them, let time pass.

A database backend owns a freshly created database under an alias of its own. Time passes there by
moving every timestamp into the past; in memory by turning the clock.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.models import F

from celery_outbox_steps.envelope import EVENT_VERSION
from celery_outbox_steps.testing import contract
from django_integration.models import (
    CeleryOutbox,
    CeleryOutboxDeadLetter,
    CeleryOutboxDelivery,
    CeleryOutboxPause,
    CeleryOutboxRate,
    CeleryOutboxRelay,
    DatabaseNow,
)
from django_integration.schema import CALL_COLUMNS, FAR, Row
from django_integration.store import DjangoStore
from django_integration.store.failed_tasks import Failure
from tests import helpers
from tests.harness.databases import Databases, installed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVICES = {
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "mysqlclient": "mysql",
    "pymysql": "mysql",
}
MODULES = {
    "psycopg": "psycopg",
    "psycopg2": "psycopg2",
    "mysqlclient": "MySQLdb",
    "pymysql": "pymysql",
    "sqlite": "sqlite3.dbapi2",
}
MESSAGE_TIMES = ("created_at", "due_at", "updated_at", "claimed_until", "published_at", "eta")
TIMES = {
    CeleryOutbox: MESSAGE_TIMES,
    CeleryOutboxDelivery: MESSAGE_TIMES,
    CeleryOutboxDeadLetter: ("created_at", "dead_at", "eta"),
    CeleryOutboxRelay: ("started_at", "seen_at", "expires_at", "turn_at"),
    CeleryOutboxPause: ("paused_at",),
    CeleryOutboxRate: ("used_until", "planned_until"),
}
EARLIER = {
    "postgresql": "{0} - %s * interval '1 second'",
    "mysql": "{0} - INTERVAL %s SECOND",
    "sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', {0}, printf('%%.3f seconds', -(%s)))",
}


class MemoryBackend(contract.MemoryBackend):
    """The package's own, with the handles that the tests here need besides."""

    name = vendor = "memory"

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

    def delete_member(self, relay_id: str) -> None:
        self._first.members.pop(relay_id, None)


class DatabaseBackend:
    """`DjangoStore`s on one database."""

    def __init__(self, name: str, settings: dict[str, Any], suffix: str = "") -> None:
        self.name = name
        self.alias = f"contract_{name}{suffix}"
        self.settings = settings
        self._stores: list[DjangoStore] = []

    @property
    def vendor(self) -> str:
        return str(connections[self.alias].vendor)

    def clear(self) -> None:
        self.close_stores()
        for model in TIMES:
            model.objects.using(self.alias).all().delete()

    def close_stores(self) -> None:
        for store in self._stores:
            store.close()
            if store.deliveries is not None:
                store.deliveries.close()
        self._stores.clear()

    def store(self, **options: Any) -> DjangoStore:
        store = DjangoStore(self.alias, **options)
        self._stores.append(store)
        return store

    def add(
        self, count: int = 1, *, due_in: float = 0.0, held: bool = False, **columns: Any
    ) -> list[int]:
        defaults: dict[str, Any] = {
            "task_id": "id",
            "task_name": "tests.task",
            "args": "[]",
            "kwargs": "{}",
            "options": "{}",
        }
        model: Any = CeleryOutbox
        if columns.get("destination") is None:
            columns.pop("destination", None)
        else:
            model, defaults["schema_version"] = CeleryOutboxDelivery, EVENT_VERSION
        ids = []
        for _ in range(count):
            row = model(**{**defaults, **columns})
            row.save(using=self.alias)
            ids.append(row.pk)
        if due_in:
            self._earlier(model, ("due_at",), -due_in, ids)
        if held:
            model.objects.using(self.alias).filter(pk__in=ids).update(eta=F("due_at"))
        return ids

    def add_failed_task(self, **columns: Any) -> int:
        (row_id,) = self.add(1, **columns)
        row = CeleryOutbox.objects.using(self.alias).get(pk=row_id)
        row.delete()
        stored = Row(**{name: getattr(row, name) for name in CALL_COLUMNS})
        self.store().keep_failed_task(stored, Failure("ValueError: no", "Traceback", 1))
        return int(self.dead_letters()[-1]["id"])

    def rows(self, destination: str | None = None) -> list[dict[str, Any]]:
        if destination is None:
            rows: Any = CeleryOutbox.objects.using(self.alias)
        else:
            rows = CeleryOutboxDelivery.objects.using(self.alias).filter(destination=destination)
        return [_columns(row) for row in rows.order_by("id")]

    def dead_letters(self) -> list[dict[str, Any]]:
        letters = CeleryOutboxDeadLetter.objects.using(self.alias).order_by("id")
        return [_columns(letter) for letter in letters]

    def delete_member(self, relay_id: str) -> None:
        CeleryOutboxRelay.objects.using(self.alias).filter(relay_id=relay_id).delete()

    def seconds_until(self, moment: datetime) -> float:
        now = CeleryOutbox.objects.using(self.alias).annotate(n=DatabaseNow()).values("n").first()
        current = now["n"] if now else datetime.now(timezone.utc)
        return (moment - current).total_seconds()

    def pass_time(self, seconds: float) -> None:
        for model, columns in TIMES.items():
            self._earlier(model, columns, seconds)

    def execute(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall()) if cursor.description else []

    def _earlier(
        self, model: Any, columns: tuple[str, ...], seconds: float, ids: list[int] | None = None
    ) -> None:
        earlier, far = EARLIER[self.vendor], FAR[self.vendor]
        # What is held back is due at no time.
        moved = {name: earlier.format(name) for name in columns}
        if "due_at" in moved:
            moved["due_at"] = f"CASE WHEN due_at >= {far} THEN due_at ELSE {moved['due_at']} END"
        changes = ", ".join(f"{name} = {value}" for name, value in moved.items())
        where = "" if ids is None else f" WHERE id IN ({', '.join(['%s'] * len(ids))})"
        self.execute(
            f"UPDATE {model._meta.db_table} SET {changes}{where}",
            *[seconds] * len(columns),
            *(ids or ()),
        )


Backend = MemoryBackend | DatabaseBackend


@contextmanager
def opened(name: str, directory: Path, *, migrated: bool = True) -> Iterator[Backend]:
    """The backend, on a database that lives as long as this block."""
    if name == "memory":
        yield MemoryBackend()
        return
    if name in SERVICES:
        helpers.require_service(SERVICES[name])
    suffix, databases = "" if migrated else "_empty", Databases(directory)
    settings = databases.get(SERVICES.get(name, name), f"contract{suffix}", migrated=migrated)
    backend = DatabaseBackend(name, settings, suffix)
    with installed(backend.alias, settings):
        assert connections[backend.alias].Database.__name__ == MODULES[name]
        yield backend
        backend.close_stores()
    databases.drop_all()


def _columns(row: Any) -> dict[str, Any]:
    return {field.column: getattr(row, field.column) for field in row._meta.concrete_fields}
