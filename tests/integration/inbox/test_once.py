"""`@once`: a delivery that is repeated changes nothing, and returns what the first one returned."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack, closing, suppress
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import wraps
from typing import NamedTuple
from uuid import UUID

import pytest
from celery import Task, chain, chord, group, states
from celery.exceptions import Ignore, Reject
from django.db import (
    DataError,
    Error,
    InterfaceError,
    OperationalError,
    connection,
    connections,
    transaction,
)
from kombu.serialization import register, unregister
from kombu.utils.json import dumps, loads

from celery_outbox_steps.errors import OutboxError, StoreNotReady
from django_integration import once
from django_integration.models import CeleryOutbox, CeleryOutboxInbox
from django_integration.store import DjangoStore
from tests.harness.databases import installed
from tests.harness.proxy import Wiretap
from tests.helpers import wait_for
from tests.integration.enqueue.test_held_retries import database_away
from tests.integration.inbox.conftest import deliver, entries, table_of_effects


class Point(NamedTuple):
    x: int
    y: set[int]


@pytest.fixture
def charge(app, effects):
    @app.task(name="shop.charge", shared=False)
    @once
    def charge(order):
        effects.add(order)
        return f"receipt-{order}"

    return charge


def test_a_duplicate_does_nothing_and_returns_the_stored_result(charge, effects):
    first, second, third = (deliver(charge, 7, task_id="a") for _ in range(3))
    assert first.retval == second.retval == third.retval == "receipt-7"
    assert effects.all() == ["7"]
    [(key, name, duplicates)] = entries()
    assert key.startswith("a#")
    assert (name, duplicates) == ("shop.charge", 2)


def test_a_database_that_can_not_return_what_it_writes(charge, effects, monkeypatch):
    """As MySQL, in contrast to MariaDB."""
    monkeypatch.setattr(connection.features, "can_return_columns_from_insert", False)
    assert [deliver(charge, 7, task_id="a").retval for _ in range(2)] == ["receipt-7"] * 2
    assert effects.all() == ["7"]


def test_other_ids_and_other_tasks_are_other_work(app, charge, effects):
    @app.task(name="shop.refund", shared=False)
    @once
    def refund(order):
        effects.add(f"refund {order}")

    deliver(charge, 7, task_id="a")
    deliver(charge, 7, task_id="A")  # MySQL takes them for equal
    deliver(charge, 7, task_id="a ")
    deliver(refund, 7, task_id="a")  # as self.replace() would
    assert sorted(effects.all()) == ["7", "7", "7", "refund 7"]


def test_the_continuation_of_a_duplicate_is_that_of_the_first(app, charge, effects):
    @app.task(name="shop.mail", shared=False)
    def mail(receipt):
        pass

    rest = [mail.s().set(task_id="next")]
    for _ in range(2):
        deliver(charge, 7, task_id="a", chain=[dict(each) for each in rest])
    rows = CeleryOutbox.objects.order_by("id")
    assert [(row.task_id, row.args) for row in rows] == [("next", '["receipt-7"]')] * 2


@pytest.mark.parametrize("canvas", ["task", "chain", "group", "chord", "several", "nested"])
def test_callbacks_have_the_same_ids_at_every_delivery(app, charge, canvas):
    """Celery would give them new ones each time."""
    app.conf.result_backend = "cache+memory://"

    @app.task(name="shop.mail", shared=False)
    def mail(*_):
        pass

    callbacks = {
        "task": [mail.s()],
        "chain": [chain(mail.s(), mail.s(), mail.s())],
        "group": [group(mail.s(), mail.s())],
        "chord": [chord([mail.s(), mail.s()], mail.s())],
        "several": [mail.s(), mail.s(), mail.s().set(task_id="own")],
        "nested": [group(chain(mail.s(), mail.s()), mail.s())],
    }[canvas]
    stored = []
    for _ in range(2):
        deliver(charge, 7, task_id="a", callbacks=loads(dumps(callbacks)))
        rows = CeleryOutbox.objects.order_by("id")
        stored.append([(row.task_id, chained_ids(row)) for row in rows])
        rows.delete()
    first, second = stored
    assert first == second
    ids = [each for task_id, chained in first for each in (task_id, *chained)]
    assert len(set(ids)) == len(ids) > 0


def chained_ids(row):
    """Ids of the tasks that follow in the message."""
    embed = json.loads(json.loads(row.options).get("embed", "{}"))
    return [each["options"]["task_id"] for each in embed.get("chain") or ()]


@pytest.mark.parametrize("error", [ValueError, Ignore, Reject])
def test_a_failure_leaves_nothing_behind(app, effects, error):
    failing = [error]

    @app.task(name="shop.flaky", shared=False)
    @once
    def flaky():
        effects.add("done")
        if failing:
            raise failing.pop()
        return "worked"

    deliver(flaky, task_id="a")
    assert effects.all() == entries() == []
    assert deliver(flaky, task_id="a").retval == "worked"
    assert effects.all() == ["done"]


def test_a_retry_leaves_nothing_behind(app, effects):
    @app.task(name="shop.flaky", shared=False, bind=True, autoretry_for=(KeyError,))
    @once
    def flaky(self):
        effects.add(self.request.retries)
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        if self.request.retries == 1:
            raise KeyError
        return self.request.retries

    assert deliver(flaky, task_id="a", retries=0).info.state == states.RETRY
    assert deliver(flaky, task_id="a", retries=1).info.state == states.RETRY
    assert effects.all() == entries() == []
    assert deliver(flaky, task_id="a", retries=2).retval == 2
    assert effects.all() == ["2"]


def test_calls_of_the_task_are_part_of_it(app, effects):
    failing = [True]

    @app.task(name="shop.order", shared=False)
    @once
    def order():
        app.send_task("shop.mail")
        if failing and failing.pop():
            raise ValueError

    for _ in range(3):
        deliver(order, task_id="a")
    assert CeleryOutbox.objects.count() == 1


def test_a_concurrent_duplicate_waits_for_the_first(app, effects, database):
    begun, go_on, values = threading.Event(), threading.Event(), []

    @app.task(name="shop.slow", shared=False)
    @once
    def slow():
        effects.add("done")
        begun.set()
        assert go_on.wait(20)
        return "the first"

    def run():
        values.append(deliver(slow, task_id="a").retval)
        connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(3)]
    threads[0].start()
    assert begun.wait(20)
    for thread in threads[1:]:
        thread.start()
    if database == "postgresql":
        wait_for(lambda: waiting_sessions() == 2)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert values == ["the first"] * 3
    assert effects.all() == ["done"]


def test_if_the_first_fails_a_concurrent_duplicate_does_the_work(app, effects):
    begun, go_on, runs, values = threading.Event(), threading.Event(), [], []

    @app.task(name="shop.slow", shared=False)
    @once
    def slow():
        effects.add("done")
        runs.append(1)
        if len(runs) == 1:
            begun.set()
            assert go_on.wait(20)
            raise ValueError
        return "a later one"

    def run():
        values.append(deliver(slow, task_id="a").retval)
        connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(4)]
    threads[0].start()
    assert begun.wait(20)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert values.count("a later one") == 3
    assert len(runs) == 2
    assert effects.all() == ["done"]


def waiting_sessions():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return cursor.fetchone()[0]


@pytest.mark.parametrize("limit", ["of the lock", "of the statement"])
def test_a_duplicate_waits_longer_than_the_database_lets_it(app, effects, database, limit):
    """A timeout of the database, or of the project, is no failure of the task."""
    begun, go_on, values = threading.Event(), threading.Event(), []
    impatient = {
        ("postgresql", "of the lock"): "SET lock_timeout = 100",
        ("postgresql", "of the statement"): "SET statement_timeout = 100",
        ("mysql", "of the lock"): "SET innodb_lock_wait_timeout = 1",
        ("mysql", "of the statement"): "SET max_statement_time = 0.1",
        ("sqlite", "of the lock"): "PRAGMA busy_timeout = 100",
    }.get((database, limit))
    if impatient is None:
        pytest.skip("SQLite does not limit statements")

    @app.task(name="shop.slow", shared=False)
    @once
    def slow():
        begun.set()
        assert go_on.wait(20)
        return "the first"

    def run(sql):
        with connection.cursor() as cursor:
            cursor.execute(sql)
        values.append(deliver(slow, task_id="a").retval)
        connections.close_all()

    threads = [threading.Thread(target=run, args=[sql]) for sql in ("SELECT 1", impatient)]
    threads[0].start()
    assert begun.wait(20)
    threads[1].start()
    threads[1].join(1.5)
    assert threads[1].is_alive()
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert values == ["the first"] * 2


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml", "msgpack"])
def test_results_of_any_serializer(app, effects, serializer):
    pytest.importorskip({"yaml": "yaml", "msgpack": "msgpack"}.get(serializer, "json"))
    app.conf.update(result_serializer=serializer, accept_content=["json", serializer])
    value = {"list": [1, 2.5, None, True, "ä\x00☃"], "nested": {"a": []}}

    @app.task(name="shop.value", shared=False)
    @once
    def give():
        return value

    assert [deliver(give, task_id="a").retval for _ in range(2)] == [value, value]


def test_results_that_only_the_serializer_of_the_project_knows(app, effects):
    register("shouting", lambda text: text.upper(), lambda text: text.lower(), "text/x-shout")
    app.conf.update(result_serializer="shouting", accept_content=["json", "shouting"])
    try:

        @app.task(name="shop.shout", shared=False)
        @once
        def shout():
            return "hello"

        assert [deliver(shout, task_id="a").retval for _ in range(2)] == ["hello", "hello"]
    finally:
        unregister("shouting")


@pytest.mark.parametrize(
    "value",
    [
        None, 0, "", False, [], b"bytes", 2**70, "x" * 1_000_000,
        Decimal("1.10"), UUID(int=7), datetime(2026, 1, 2, tzinfo=timezone.utc),
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_values_that_json_can_hold_come_back_as_they_were(app, effects, value):
    @app.task(name="shop.value", shared=False)
    @once
    def give():
        return value

    assert [deliver(give, task_id="a").retval for _ in range(2)] == [value, value]


def test_pickle_brings_back_what_json_can_not_hold(app, effects):
    app.conf.update(result_serializer="pickle", accept_content=["pickle", "json"])

    @app.task(name="shop.value", shared=False)
    @once
    def give():
        return Point(1, {2})

    assert [deliver(give, task_id="a").retval for _ in range(2)] == [Point(1, {2})] * 2


def test_a_result_that_can_not_be_stored_fails_the_task_with_its_work(app, effects):
    @app.task(name="shop.value", shared=False)
    @once
    def give():
        effects.add("done")
        return object()

    failed = deliver(give, task_id="a")
    assert isinstance(failed.retval.exception, OutboxError)
    assert "ignore_result=True" in str(failed.retval.exception)
    assert effects.all() == entries() == []


def test_a_result_that_nobody_wants_need_not_be_stored(app, effects):
    @app.task(name="shop.value", shared=False, ignore_result=True)
    @once
    def give():
        effects.add("done")
        return object()

    assert deliver(give, task_id="a").info is None
    assert deliver(give, task_id="a").retval is None
    assert effects.all() == ["done"]


def test_a_row_can_not_make_a_worker_unpickle(app, charge, effects):
    deliver(charge, 7, task_id="a")
    CeleryOutboxInbox.objects.update(
        content_type="application/x-python-serialize", content_encoding="binary", result=b"cos\n."
    )
    failed = deliver(charge, 7, task_id="a")
    assert "ContentDisallowed" in type(failed.retval.exception).__name__
    assert effects.all() == ["7"]


def test_a_key_of_ones_own(app, effects):
    @app.task(name="shop.charge", shared=False, bind=True)
    @once(key=lambda order, amount=1: f"charge:{order}")
    def charge(self, order, amount=1):
        effects.add(order)
        return amount

    assert [deliver(charge, 7, amount).retval for amount in (1, 2)] == [1, 1]
    assert deliver(charge, 8, 3).retval == 3
    assert sorted(effects.all()) == ["7", "8"]


@pytest.mark.parametrize("key", [None, "", 7])
def test_a_key_that_is_none_is_refused(app, effects, key):
    @app.task(name="shop.charge", shared=False)
    @once(key=lambda: key)
    def charge():
        effects.add("done")

    assert "must be a text" in str(deliver(charge).retval.exception)
    assert effects.all() == []


def test_keys_of_any_length_and_alphabet(app, effects):
    @app.task(name="shop.charge", shared=False)
    @once(key=lambda key: key)
    def charge(key):
        effects.add("done")

    keys = ["k" * 300 + "1", "k" * 300 + "2", "ä", "Ä", "\x00", "☃ \ud800", "a", "a "]
    for key in keys * 2:
        assert deliver(charge, key).info is None
    assert len(effects.all()) == len(keys)


def test_another_database(app, effects, database, use_database):
    use_database(database, alias="orders", name="orders")

    with table_of_effects("orders") as orders:

        @app.task(name="shop.charge", shared=False)
        @once(using="orders")
        def charge():
            orders.add("done")
            if len(orders.all()) == 1 and not entries("orders"):
                raise AssertionError("the entry is not there yet")

        deliver(charge, task_id="a")
        deliver(charge, task_id="a")
        assert orders.all() == ["done"]
        assert len(entries("orders")) == 1
    assert entries() == []


def test_without_the_table_the_error_names_the_command(app, effects):
    @app.task(name="shop.charge", shared=False)
    @once
    def charge():
        effects.add("done")

    effects.run("ALTER TABLE celery_outbox_inbox RENAME TO hidden")
    try:
        error = deliver(charge).retval.exception
    finally:
        effects.run("ALTER TABLE hidden RENAME TO celery_outbox_inbox")
    assert isinstance(error, StoreNotReady)
    assert "python manage.py migrate --database=default celery_outbox" in str(error)
    assert effects.all() == []


def test_called_directly_it_is_a_plain_function(charge, effects):
    assert [charge(7), charge(7), charge.run(7)] == ["receipt-7"] * 3
    assert charge.__wrapped__ is not None
    assert effects.all() == ["7"] * 3
    assert entries() == []


def test_eagerly_it_is_a_plain_function(app, charge, effects):
    assert [charge.apply((7,), task_id="a").get() for _ in range(2)] == ["receipt-7"] * 2
    app.conf.task_always_eager = True
    charge.apply_async((7,), task_id="a")
    assert effects.all() == ["7"] * 3
    assert entries() == []


def test_called_by_another_task_it_is_a_plain_function(app, charge, effects):
    @app.task(name="shop.all", shared=False)
    @once
    def charge_all():
        return [charge(7), charge(8)]

    for _ in range(2):
        assert deliver(charge_all, task_id="a").retval == ["receipt-7", "receipt-8"]
    assert effects.all() == ["7", "8"]


def test_a_task_that_calls_itself_or_another_one_calls_plain_functions(app, charge, effects):
    @app.task(name="shop.walk", shared=False, bind=True)
    @once
    def walk(self, depth):
        effects.add(f"walk {depth}")
        below = self.run(depth - 1) if depth else charge.run(7)
        return [depth, below]

    assert deliver(walk, 2, task_id="a").retval == [2, [1, [0, "receipt-7"]]]
    assert effects.all() == ["walk 2", "walk 1", "walk 0", "7"]
    assert len(entries()) == 1


def test_a_decorator_around_it_may_try_again(app, effects):
    """As those do that repeat a task after a deadlock."""
    failing = [True]

    def twice(function):
        @wraps(function)
        def run(*args):
            with suppress(KeyError):
                return function(*args)
            return function(*args)

        return run

    @app.task(name="shop.flaky", shared=False)
    @twice
    @once
    def flaky():
        effects.add("done")
        if failing and failing.pop():
            raise KeyError

    assert deliver(flaky, task_id="a").info is None
    assert effects.all() == ["done"]
    assert len(entries()) == 1


def test_celery_checks_the_arguments_of_calls_as_without_it(app):
    @app.task(name="shop.pay", shared=False)
    @once
    def pay(order, *, amount=1):
        pass

    with pytest.raises(TypeError):
        pay.delay()
    with pytest.raises(TypeError):
        pay.delay(7, euros=2)


def test_a_part_of_a_task_can_not_be_protected_by_it(app, effects):
    @once
    def part():
        effects.add("done")

    @app.task(name="shop.whole", shared=False)
    def whole():
        part()

    error = deliver(whole).retval.exception
    assert "app.outbox.once(key)" in str(error)
    assert effects.all() == []
    part()
    assert effects.all() == ["done"]


def test_decorators_around_it(app, effects):
    def logged(function):
        @wraps(function)
        def run(*args):
            return function(*args)

        return run

    @app.task(name="shop.logged", shared=False)
    @logged
    @once
    def charge():
        effects.add("done")
        return 1

    assert [deliver(charge, task_id="a").retval for _ in range(2)] == [1, 1]
    assert effects.all() == ["done"]


def test_a_task_that_is_a_class(app, effects):
    class Charge(Task):
        name = "shop.charge"

        @once(key=str)
        def run(self, order):
            effects.add(order)
            return order

    task = app.register_task(Charge())
    assert [deliver(task, 7).retval for _ in range(2)] == [7, 7]
    assert effects.all() == ["7"]


def test_wrong_uses_are_refused_where_they_are_written(app):
    @app.task(name="shop.task", shared=False)
    def task():
        pass

    with pytest.raises(TypeError, match="below the decorator"):
        once(task)

    async def coroutine():
        pass

    with pytest.raises(TypeError, match="after it returns"):
        once(coroutine)
    for keep in (0, -1, "7 days", timedelta(0)):
        with pytest.raises(ValueError, match="keep must be"):
            once(keep=keep)


def test_how_long_an_entry_is_kept(app, effects):
    for keep in (None, 60, timedelta(days=1)):

        @app.task(name=f"shop.{keep}", shared=False)
        @once(keep=keep)
        def charge():
            pass

        deliver(charge)
    found = CeleryOutboxInbox.objects.order_by("expires_at")
    kept = [round((each.expires_at - each.created_at).total_seconds()) for each in found]
    assert kept == [60, 86_400, 7 * 86_400]


def test_inside_a_transaction_it_is_a_part_of_that(app, charge, effects):
    with transaction.atomic():
        assert deliver(charge, 7, task_id="a").retval == "receipt-7"
        assert deliver(charge, 7, task_id="a").retval == "receipt-7"
        transaction.set_rollback(True)
    assert effects.all() == entries() == []


def test_a_block_of_other_code(app, effects):
    def import_file():
        with app.outbox.once("import:7") as first:
            if first:
                effects.add("done")
            return first

    assert [import_file() for _ in range(3)] == [True, False, False]
    assert effects.all() == ["done"]
    with pytest.raises(ZeroDivisionError), app.outbox.once("import:8"):
        effects.add(1 / 0)
    with app.outbox.once("import:8", keep=timedelta(hours=1)) as first:
        assert first
    assert effects.all() == ["done"]
    for key in ("", None, 7):
        with pytest.raises(OutboxError, match="must be a text"), app.outbox.once(key):
            pass


@pytest.mark.parametrize(
    "vendor",
    [
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ],
)
def test_a_commit_whose_answer_was_lost_is_a_success(app, databases, use_database, vendor):
    """Otherwise the task would have failed although its work is done, and its chain would end."""
    use_database(vendor, alias="observer")
    settings = databases.get(vendor)
    with (
        table_of_effects("observer") as effects,
        Wiretap(settings["HOST"], int(settings["PORT"])) as tap,
        installed("default", {**settings, "HOST": "127.0.0.1", "PORT": str(tap.port)}),
    ):

        @app.task(name="shop.charge", shared=False)
        @once
        def charge():
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO effects VALUES ('done')")
            tap.withhold_after(b"COMMIT")
            cutter.start()

        def cut():
            wait_for(effects.all)
            connections.close_all()
            tap.cut_withheld()

        cutter = threading.Thread(target=cut)
        ended = deliver(charge, task_id="a")
        cutter.join()
        assert ended.info is None, ended.retval
        assert deliver(charge, task_id="a").info is None
        assert effects.all() == ["done"]


def test_a_commit_that_takes_long_is_waited_for(app, effects, database):
    """A session that is lost may be one that the server has not given up: it may still commit."""
    if database != "postgresql":
        pytest.skip("one way to hold a session between two statements is enough")
    ended = threading.Event()

    @app.task(name="shop.charge", shared=False)
    @once
    def charge():
        effects.add("done")
        abandon_connection(ended)

    waiter = threading.Thread(target=lambda: (wait_for(waiting_in_thread), ended.set()))
    waiter.start()
    assert deliver(charge, task_id="a").info is None
    waiter.join(30)
    assert effects.all() == ["done"]
    assert len(entries()) == 1


def waiting_in_thread():
    try:
        return waiting_sessions()
    finally:
        connections.close_all()


def abandon_connection(ended):
    """The COMMIT fails for the client, and reaches the server when `ended` is set."""
    raw, commit = connection.connection, connection._commit

    def lost():
        def late():
            assert ended.wait(20)
            raw.commit()
            raw.close()

        threading.Thread(target=late).start()
        connection._commit = commit
        connection.connection = None
        raise OperationalError("the answer was lost")

    connection._commit = lost


def test_a_commit_in_doubt_returns_the_result_that_is_in_the_table(app, effects, database):
    """The entry may be that of another delivery, which did the work after this one was lost."""
    if database == "sqlite":
        pytest.skip("nobody can end a session of SQLite")
    values = iter(["lost", "kept"])

    @app.task(name="shop.charge", shared=False)
    @once
    def charge():
        value = next(values)
        if value == "lost":
            transaction.on_commit(lambda: None)
            end_session_before_commit(lambda: in_thread(lambda: deliver(charge, task_id="a")))
        effects.add(value)
        return value

    assert deliver(charge, task_id="a").retval == "kept"
    assert effects.all() == ["kept"]


def end_session_before_commit(then):
    """The server ends this session when it is about to commit; `then` runs before the COMMIT."""
    commit = connection._commit
    sql = {"postgresql": "SELECT pg_terminate_backend(%s)", "mysql": "KILL %s"}[connection.vendor]
    own = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}
    with connection.cursor() as cursor:
        cursor.execute(own[connection.vendor])
        (session,) = cursor.fetchone()

    def kill():
        with connection.cursor() as cursor:
            cursor.execute(sql, [session])

    def ended():
        connection._commit = commit
        in_thread(kill)
        then()
        return commit()

    connection._commit = ended


def in_thread(work):
    def run():
        try:
            work()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)


def test_an_error_that_the_task_swallows_does_not_lose_its_work_silently(app, effects):
    """Django, or the database, rolls everything back at the end; the task would have succeeded."""
    effects.run("CREATE UNIQUE INDEX effects_name ON effects (name)")

    @app.task(name="shop.charge", shared=False)
    @once
    def charge(broken):
        effects.add("done")
        if broken == "caught":
            with suppress(Error), transaction.atomic(savepoint=False):
                effects.add("done")
        elif broken == "raw" and connection.vendor == "postgresql":
            with suppress(Error):
                effects.run("SELECT 1 / 0")
        elif broken:
            transaction.set_rollback(True)

    for broken in ("caught", "raw", "by hand"):
        assert deliver(charge, broken, task_id="a").info is not None
        assert effects.all() == entries() == []
    assert deliver(charge, "", task_id="a").info is None
    assert effects.all() == ["done"]


def test_an_entry_that_a_deadlock_took_away_fails_the_task(app, effects):
    """MySQL rolls the whole transaction back, and a task may go on."""
    if connection.vendor != "mysql":
        pytest.skip("a deadlock aborts the transaction, or can't happen")

    @app.task(name="shop.charge", shared=False)
    @once
    def charge():
        effects.run("DELETE FROM celery_outbox_inbox")
        effects.add("done")

    assert "rolled the transaction back" in str(deliver(charge, task_id="a").retval.exception)
    assert effects.all() == []


def test_errors_of_on_commit_hooks_are_not_swallowed(app, effects):
    def hook():
        raise DataError("of a hook")

    @app.task(name="shop.charge", shared=False)
    @once
    def charge():
        effects.add("done")
        transaction.on_commit(hook)

    assert isinstance(deliver(charge, task_id="a").retval.exception, DataError)
    assert effects.all() == ["done"]
    assert deliver(charge, task_id="a").info is None
    assert effects.all() == ["done"]


def test_without_autocommit_it_is_refused(app, charge, effects):
    connection.set_autocommit(False)
    try:
        error = deliver(charge, 7).retval.exception
    finally:
        connection.rollback()
        connection.set_autocommit(True)
    assert "autocommit off" in str(error)
    assert effects.all() == []


@pytest.mark.parametrize("vendor", ["postgresql", "mysql"])
def test_a_chain_goes_on_through_the_broker_if_the_database_is_away(
    app, use_database, vendor, request, caplog
):
    """The work is committed: an error would end the chain, and nothing would repeat it."""
    use_database(vendor)
    app.conf.task_default_queue = f"away.{vendor}"

    def then_without_database(function):
        @wraps(function)
        def run(*args):
            value = function(*args)
            request.addfinalizer(lost.close)
            lost.enter_context(database_away())
            return value

        return run

    @app.task(name="shop.mail", shared=False)
    def mail(receipt):
        pass

    @app.task(name="shop.charge", shared=False)
    @then_without_database
    @once
    def charge():
        return "receipt"

    lost = ExitStack()
    ended = deliver(charge, task_id="a", chain=[dict(mail.s().set(task_id="next"))])
    lost.close()
    assert ended.info is None, ended.retval
    assert not CeleryOutbox.objects.exists()
    with app.connection_for_write() as broker:
        message = broker.SimpleQueue(app.conf.task_default_queue).get(timeout=5)
    assert (message.headers["id"], message.payload[0]) == ("next", ["receipt"])
    assert "celery_outbox_not_stored" in caplog.text


def test_a_call_whose_row_had_no_answer_is_sent_with_the_same_id(app, databases, use_database):
    """It may be both a row and a message: `@once` must recognise it."""
    use_database("postgresql", alias="observer")
    app.conf.task_default_queue = "unanswered"
    settings = databases.get("postgresql")
    with (
        Wiretap(settings["HOST"], int(settings["PORT"])) as tap,
        installed("default", {**settings, "HOST": "127.0.0.1", "PORT": str(tap.port)}),
    ):

        @app.task(name="shop.all", shared=False)
        def mail_all():
            connection.ensure_connection()
            tap.withhold_after(b"INSERT INTO CELERY_OUTBOX")
            cutter.start()
            app.send_task("shop.mail")

        def cut():
            wait_for(stored)
            connections.close_all()
            tap.cut_withheld()

        def stored():
            return list(CeleryOutbox.objects.using("observer").values_list("task_id", flat=True))

        cutter = threading.Thread(target=cut)
        assert deliver(mail_all).info is None
        cutter.join()
        with app.connection_for_write() as broker:
            message = broker.SimpleQueue("unanswered").get(timeout=5)
        assert stored() == [message.headers["id"]]


@pytest.mark.parametrize("vendor", ["postgresql", "mysql"])
def test_a_call_that_the_database_refuses_is_an_error(app, use_database, vendor):
    """It is not away: a message without the key would run beside the row that waits."""
    use_database(vendor)
    app.conf.task_default_queue = f"refused.{vendor}"

    @app.task(name="shop.mail", shared=False)
    def mail():
        pass

    mail.apply_async(outbox_key="k")

    @app.task(name="shop.order", shared=False)
    def order():
        impatient = {"postgresql": "SET lock_timeout = 100"}
        with connection.cursor() as cursor:
            cursor.execute(impatient.get(vendor, "SET innodb_lock_wait_timeout = 1"))
        mail.apply_async(outbox_key="k", outbox_on_conflict="replace")

    results = []
    with transaction.atomic():
        CeleryOutbox.objects.select_for_update().get()
        in_thread(lambda: results.append(deliver(order)))
    assert isinstance(results[0].retval.exception, OperationalError)
    with app.connection_for_write() as broker:
        assert broker.SimpleQueue(app.conf.task_default_queue).qsize() == 0


def test_a_group_of_a_worker_is_an_error_if_its_rows_are_lost(app, use_database):
    """One call of it alone must not go to the broker, as if the others were stored."""
    use_database("postgresql")
    app.conf.task_default_queue = "group"

    @app.task(name="shop.mail", shared=False)
    def mail(number):
        pass

    def members():
        for number in range(1200):
            if number == 700:
                connection.connection.close()
            yield mail.s(number)

    @app.task(name="shop.all", shared=False)
    def mail_all():
        connection.ensure_connection()
        group(members()).apply_async()

    assert isinstance(deliver(mail_all).retval.exception, (InterfaceError, OperationalError))
    with app.connection_for_write() as broker:
        assert broker.SimpleQueue(app.conf.task_default_queue).qsize() == 0


def test_in_a_transaction_it_is_an_error_if_the_database_is_away(app, use_database):
    """The transaction is lost, and so must be the call."""
    use_database("postgresql")
    app.conf.task_default_queue = "in-a-transaction"

    @app.task(name="shop.order", shared=False)
    def order():
        with transaction.atomic():
            connection.connection.close()
            app.send_task("shop.mail")

    assert isinstance(deliver(order).retval.exception, (InterfaceError, OperationalError))
    with app.connection_for_write() as broker:
        assert broker.SimpleQueue(app.conf.task_default_queue).qsize() == 0


class Model:
    """As Pydantic's, to Celery."""

    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return isinstance(other, Model) and other.number == self.number

    __hash__ = None

    def model_dump(self, mode):
        return {"number": self.number, "mode": mode}

    @classmethod
    def model_validate(cls, found):
        return cls(found["number"])


def test_a_duplicate_returns_a_model_where_the_first_run_did(app, effects):
    """Celery's option `pydantic` dumps it, with options of its own."""

    @app.task(name="shop.model", shared=False)
    @once
    def model() -> Model | None:
        return Model(7)

    assert [deliver(model, task_id="a").retval for _ in range(2)] == [Model(7)] * 2


def test_a_model_that_celery_would_not_dump_is_refused(app, effects):
    @app.task(name="shop.model", shared=False)
    @once
    def model():
        effects.add("done")
        return Model(7)

    assert "can't be serialised" in str(deliver(model, task_id="a").retval.exception)
    assert effects.all() == []


def test_a_duplicate_returns_a_tuple_where_the_first_run_did(app, effects):
    """With arguments that are pickled, the next task of a chain gets it as it is."""
    app.conf.accept_content = ["json", "pickle"]

    @app.task(name="shop.tuple", shared=False, serializer="pickle")
    @once
    def pair():
        return {1: (2, 3)}

    assert [deliver(pair, task_id="a").retval for _ in range(2)] == [{1: (2, 3)}] * 2


def test_a_purge_does_not_wait_for_running_tasks(app, effects, database):
    if database == "sqlite":
        pytest.skip("SQLite has one writer")
    for number in range(50):
        with app.outbox.once(f"expired {number}", keep=0.001):
            pass
    with app.outbox.once("running", keep=0.001):
        in_thread(purge_all)
        assert CeleryOutboxInbox.objects.count() == 1
    purge_all()
    assert entries() == []


def purge_all():
    with closing(DjangoStore("default")) as store:
        while store.purge_expired_entries(20):
            pass
