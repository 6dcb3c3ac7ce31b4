"""The Store on Django's databases: PostgreSQL, MySQL 8, MariaDB and SQLite.

`stores(app)` is what `app.conf.outbox_store` names: one Store per database that holds an outbox.
`base.py` keeps the contract; `postgresql.py`, `mysql.py` and `sqlite.py` hold what differs;
`session.py` owns the connection and `listen.py` the wake-ups.
"""

from __future__ import annotations

from typing import Any

from celery_outbox_steps.config import read
from django_integration.store.base import DjangoStore
from django_integration.tenancy import refuse_tenant_schemas

__all__ = ["DjangoStore", "stores"]


def stores(app: Any) -> list[DjangoStore]:
    """One Store per alias in `outbox_databases`; by default where the router writes the rows."""
    refuse_tenant_schemas()
    conf = app.conf
    aliases = read(conf, "databases")
    if aliases is None:
        aliases = [_written_to()]
    return [
        DjangoStore(
            alias,
            retention=read(conf, "retention"),
            notify=read(conf, "notify"),
        )
        for alias in aliases
    ]


def _written_to() -> str:
    # Models can only be imported once Django is set up, which importing this module must not need.
    from django.db import router

    from django_integration.models import CeleryOutbox

    return router.db_for_write(CeleryOutbox)
