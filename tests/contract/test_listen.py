"""PostgreSQL wakes the relay: when it can, when its session dies, and when a pooler hides it."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from contextlib import contextmanager

import pytest

from celery_outbox_steps.errors import StoreError
from django_integration.schema import CHANNEL
from tests import helpers
from tests.helpers import wait_for
from tests.services.private import free_port
from tests.services.programs import unprivileged_user

LEASE = 300.0
OTHERS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    " AND pid <> pg_backend_pid()"
)


@pytest.fixture
def store(postgresql):
    store = postgresql.store()
    store.claim(1, LEASE, "me")
    return store


def notify(backend):
    backend.execute(f"NOTIFY {CHANNEL}")


def terminate_others(backend):
    backend.execute(OTHERS.replace("SELECT pid", "SELECT pg_terminate_backend(pid)"))
    wait_for(lambda: not backend.execute(OTHERS))


def test_it_listens(store):
    assert store.listening is True


def test_it_does_not_listen_where_that_is_switched_off(postgresql):
    store = postgresql.store(notify=False)
    store.claim(1, LEASE, "me")
    assert store.listening is False
    notify(postgresql)
    assert store.wait(0.05) is False


def test_a_notification_ends_a_wait(postgresql, store):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(store.wait(60)))
    thread.start()
    notify(postgresql)
    thread.join(20)
    assert answers == [True]
    assert store.wait(0.01) is False


def test_a_notification_during_a_query_is_not_missed(postgresql, store):
    notify(postgresql)
    store.sample()
    assert store.wait(0) is True
    assert store.wait(0) is False


def test_wake_ends_a_wait_while_listening(store):
    store.wake()
    assert store.wait(60) is True


def test_a_terminated_session_is_an_error_and_then_replaced(postgresql, store):
    terminate_others(postgresql)
    with pytest.raises(StoreError):
        store.claim(1, LEASE, "me")
    assert store.listening is False
    assert store.claim(1, LEASE, "me") == []
    assert store.listening is True
    notify(postgresql)
    assert store.wait(20) is True


def test_a_session_that_ends_during_a_wait_is_an_error(postgresql, store):
    terminate_others(postgresql)
    with pytest.raises(StoreError):
        store.wait(60)
    assert store.wait(0) is False


@contextmanager
def pgbouncer(settings, directory):
    """A private pooler in transaction mode; its port."""
    program = helpers.require_program("pgbouncer")
    port = free_port()
    configuration = directory / "pgbouncer.ini"
    configuration.write_text(
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = any\npool_mode = transaction\n"
        f"[databases]\n{settings['NAME']} = host={settings['HOST']} port={settings['PORT']}"
        f" user={settings['USER']}\n"
    )
    directory.chmod(0o755)
    user = unprivileged_user("postgres")
    command = [program, *(["-u", user] if user else []), str(configuration)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def pooled(postgresql, tmp_path):
    """The same database, seen through the pooler."""
    from tests.contract.backends import DatabaseBackend
    from tests.harness.databases import complete, installed

    with pgbouncer(postgresql.settings, tmp_path) as port:
        settings = {**postgresql.settings, "HOST": "127.0.0.1", "PORT": str(port)}
        backend = DatabaseBackend(postgresql.name, settings, "_pooled")
        with installed(backend.alias, complete(backend.settings)):
            wait_for(lambda: _answers(backend), message="pgbouncer does not answer")
            yield backend
            for store in backend._stores:
                store.close()


def _answers(backend):
    store = backend.store()
    try:
        store.check()
    except StoreError:
        return False
    finally:
        store.close()
    return True


def test_behind_a_pooler_it_polls_and_says_so_once(postgresql, pooled, caplog):
    rows = postgresql.add(3)
    store = pooled.store()
    with caplog.at_level(logging.WARNING, "celery_outbox"):
        assert [message.id for message in store.claim(2, LEASE, "me")] == rows[:2]
        store.close()
        assert [message.id for message in store.claim(2, LEASE, "me")] == rows[2:]
    events = [getattr(record, "event", "") for record in caplog.records]
    assert events == ["celery_outbox_listen_unavailable"]
    assert store.listening is False
    assert store.wait(0.01) is False
    store.wake()
    assert store.wait(60) is True


def test_behind_a_pooler_the_planner_settings_reach_nobody_else(postgresql, pooled):
    postgresql.add(3)
    pooled.store().claim(2, LEASE, "me")
    assert pooled.execute("SHOW enable_seqscan") == [("on",)]


def test_a_wake_up_for_one_destination_wakes_no_other(database):
    """Also one of a forked child; each would cost the others two statements."""
    deliveries = database.store(destinations=["lake", "partner"]).deliveries
    for name in ("lake", "partner"):
        deliveries.lane(name)
    child = os.fork()
    if not child:
        deliveries.wake("partner")
        os._exit(0)
    os.waitpid(child, 0)
    assert deliveries.wait(20) == {"partner"}
    for name in ("lake", "partner", "lake"):
        deliveries.wake(name)
    assert deliveries.wait(20) == {"lake", "partner"}
    deliveries.wake("lake")
    deliveries.wake()
    assert deliveries.wait(20) is None
    assert deliveries.wait(0.01) == set()
