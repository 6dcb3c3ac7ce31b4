"""What the Store promises across processes: claims, forks, and a connection that is lent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connections, transaction

from celery_outbox_steps.messages import Dead, Published
from celery_outbox_steps.store import DeadLetters

ROOT = Path(__file__).parents[2]
LEASE = 300.0
SESSION = {
    "postgresql": "SELECT pg_backend_pid()",
    "mysql": "SELECT connection_id()",
    "sqlite": "SELECT 1",
}


def probe(database, **order):
    order = {"settings": database.settings, "driver": database.name, **order}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.contract.probe"],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    process.stdin.write(json.dumps(order))
    process.stdin.close()
    return process


def answer(process):
    with process:
        text = process.stdout.read()
    assert process.returncode == 0
    return json.loads(text)


def test_concurrent_claims_of_processes_never_overlap_and_miss_nothing(database):
    rows = database.add(500)
    processes = [probe(database, do="claim", relay=f"relay {number}") for number in range(3)]
    claimed = [row for process in processes for row in answer(process)]
    assert sorted(claimed) == rows


def test_the_session_survives_forked_children(database):
    database.add()
    answers = answer(probe(database, do="fork", session=SESSION[database.vendor]))
    assert answers["children"] == [0, 0, 0]
    assert answers["after"] == answers["before"]
    assert answers["claimed"] == 1


class TestLentConnection:
    def test_it_sees_what_its_transaction_wrote_and_ends_with_it(self, database):
        connection = connections[database.alias]
        with transaction.atomic(using=database.alias):
            database.add(2)
            store = database.store(connection=connection)
            store.check()
            one, two = store.claim(10, LEASE, "me")
            assert store.settle([Published(one), Dead(two, "no", 1)], "me") == 0
            assert len(database.dead_letters()) == 1
            assert store.replay(DeadLetters()) == 1
            transaction.set_rollback(True, using=database.alias)
        assert database.rows() == database.dead_letters() == []

    def test_it_is_never_closed(self, database):
        connection = connections[database.alias]
        store = database.store(connection=connection)
        store.claim(1, LEASE, "me")
        raw = connection.connection
        store.close()
        assert connection.connection is raw
        assert store.wait(0.01) is False


def test_a_store_never_uses_djangos_own_connection(database):
    connections[database.alias].close()
    store = database.store()
    store.claim(1, LEASE, "me")
    assert connections[database.alias].connection is None


@pytest.mark.parametrize("option", ["pool"])
def test_a_pool_in_the_settings_is_not_ours(database, option):
    if database.name != "psycopg":
        pytest.skip("Django pools connections of psycopg 3 only")
    options = connections.settings[database.alias]["OPTIONS"]
    options[option] = True
    try:
        store = database.store()
        assert store.claim(1, LEASE, "me") == []
        assert not connections[database.alias]._connection_pools
        store.close()
    finally:
        del options[option]
