"""What differs between databases, as far as it can be asked without one; and the factory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from celery_outbox_steps.errors import StoreError
from django_integration.store import DjangoStore, stores
from django_integration.store.mysql import MySQL
from django_integration.store.sqlite import SQLite


@pytest.mark.parametrize(
    ("maria", "version", "complaint"),
    [
        (True, (10, 5, 9), "MariaDB 10.5.9"),
        (True, (10, 6, 0), ""),
        (False, (5, 7, 44), "MySQL 5.7.44"),
        (False, (8, 0, 4), ""),
    ],
)
def test_servers_that_are_too_old_are_refused(maria, version, complaint):
    server = SimpleNamespace(mysql_is_mariadb=maria, mysql_version=version)
    found = MySQL().check(server)
    assert found.startswith(complaint)
    assert bool(found) is bool(complaint)


def test_error_texts_are_made_storable():
    assert SQLite().storable_text("a\x00b\ud800ä🙈") == "a\\x00b\\ud800ä🙈"
    assert MySQL().storable_text("ä🙈") == "ä\\U0001f648"


def test_another_database_is_refused_by_name():
    with pytest.raises(StoreError, match="not oracle"):
        DjangoStore("default", connection=SimpleNamespace(vendor="oracle"))


def test_the_factory_asks_the_router():
    (store,) = stores(SimpleNamespace(conf={}))
    assert (store.name, store.retention) == ("default", None)


def test_the_factory_makes_one_store_per_named_database():
    conf = {"outbox_databases": ["default", "default"], "outbox_retention": 60.0}
    assert [store.retention for store in stores(SimpleNamespace(conf=conf))] == [60.0, 60.0]
