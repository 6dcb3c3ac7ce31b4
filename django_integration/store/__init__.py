"""The Store on Django's databases: PostgreSQL, MySQL 8, MariaDB and SQLite.

`stores(app)` is what `app.conf.outbox_store` names: one Store per database that holds an outbox.
`base.py` keeps the contract, for the app's own broker, and `deliveries.py` for destinations; both
claim and settle in `lane.py`. `postgresql.py`, `mysql.py` and `sqlite.py` hold what differs;
`session.py` owns the connection and `listen.py` the wake-ups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_outbox_steps.settings import read
from django_integration.conf import add_monitoring_settings
from django_integration.store.base import DjangoStore
from django_integration.store.session import outbox_aliases
from django_integration.store.setup import refuse_without_django
from django_integration.tenancy import refuse_tenant_schemas
from django_integration.upstream.django import is_in_testcase

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["DjangoStore", "stores"]


def stores(app: Any) -> list[DjangoStore]:
    """One Store per alias in `outbox_databases`; by default for the alias the router writes to."""
    refuse_without_django()
    refuse_tenant_schemas()
    conf = app.conf
    add_monitoring_settings(conf)
    return [
        DjangoStore(
            alias,
            retention=read(conf, "retention"),
            notify=read(conf, "notify"),
            connection=_test_connection(alias),
            destinations=read(conf, "destinations"),
        )
        for alias in outbox_aliases(conf)
    ]


def _test_connection(alias: str) -> BaseDatabaseWrapper | None:
    """The connection of a running Django `TestCase`, if there is one.

    Its rows are never committed: a connection of our own would not see them, and on SQLite it would
    wait for the test's lock.
    """
    from django.db import connections

    if alias not in connections:
        return None
    return connections[alias] if is_in_testcase(connections[alias]) else None
