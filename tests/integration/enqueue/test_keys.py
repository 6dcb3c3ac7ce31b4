"""`outbox_key`: at most one row with a key waits, and it is published after every commit."""

from __future__ import annotations

import json
import threading
from contextlib import closing

import pytest
from celery import chain, chord, group
from celery.app.trace import build_tracer
from celery.contrib.testing.app import setup_default_app
from django.db import connection, connections, transaction

from celery_outbox_steps.errors import OutboxError
from celery_outbox_steps.messages import Deferred, Published, Retry
from django_integration.models import CeleryOutbox
from django_integration.signals import outbox_message_created
from django_integration.store import DjangoStore
from tests.helpers import wait_for

VENDORS = [
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mysql", marks=pytest.mark.mysql),
    "sqlite",
]
SERVERS = VENDORS[:2]


@pytest.fixture(params=VENDORS)
def database(request, use_database):
    use_database(request.param)
    return request.param


@pytest.fixture(params=SERVERS)
def server(request, use_database):
    use_database(request.param)
    return request.param


@pytest.fixture
def call(add):
    """`call(7)`: a call with the key "k", in a transaction of its own."""

    def make(*args, outbox_key="k", **options):
        with transaction.atomic():
            return add.apply_async(args, outbox_key=outbox_key, **options)

    return make


def waiting():
    """Arguments of the calls in the table, in the order of their ids."""
    rows = CeleryOutbox.objects.order_by("id")
    return [tuple(json.loads(row.args)) for row in rows]


def claim(count=10):
    with closing(DjangoStore("default")) as store:
        return store.claim(count, 60, "relay")


def settle(*outcomes, retention=None):
    with closing(DjangoStore("default", retention=retention)) as store:
        assert store.settle(outcomes, "relay") == 0


@pytest.mark.usefixtures("database")
class TestOneAfterTheOther:
    def test_the_first_call_is_kept_and_the_second_told_its_id(self, call):
        first, second = call(1), call(2)
        assert first.was_stored
        assert second.was_stored is False
        assert second.id == first.id
        assert waiting() == [(1,)]

    def test_replace_takes_the_newest_arguments_and_id(self, call):
        first, second = call(1), call(2, outbox_on_conflict="replace")
        assert second.was_stored
        assert second.id != first.id
        assert waiting() == [(2,)]
        row = CeleryOutbox.objects.get()
        assert row.task_id == second.id == json.loads(row.options)["headers"]["id"]

    def test_replace_takes_the_newest_time(self, call):
        for countdown in (60, 3600, None):
            call(1, countdown=countdown, outbox_on_conflict="replace")
            row = CeleryOutbox.objects.get()
            ahead = (row.due_at - row.created_at).total_seconds()
            assert ahead == pytest.approx(countdown or 0, abs=0.01)
            assert (row.eta is None) == (countdown is None)

    def test_keep_leaves_the_time(self, call):
        call(1, countdown=60)
        call(2)
        row = CeleryOutbox.objects.get()
        assert (row.due_at - row.created_at).total_seconds() == pytest.approx(60, abs=0.01)

    def test_other_keys_are_other_calls(self, call):
        keys = ["k", "K", "k ", "kk", "ä", "Ä", "\x00", "k" * 300 + "1", "k" * 300 + "2"]
        for key in keys * 2:
            call(1, outbox_key=key)
        assert len(waiting()) == len(keys)

    def test_the_key_is_free_when_the_row_is_published(self, call):
        call(1)
        settle(*map(Published, claim()))
        assert call(2).was_stored
        assert waiting() == [(2,)]

    def test_the_key_is_free_when_the_row_is_published_and_kept(self, call):
        call(1)
        settle(*map(Published, claim()), retention=60)
        assert call(2).was_stored
        assert waiting() == [(1,), (2,)]
        assert CeleryOutbox.objects.pending().count() == 1

    def test_a_published_row_that_an_older_relay_kept_gives_its_key_up(self, call):
        """The release before this one does not know the column."""
        call(1)
        CeleryOutbox.objects.update(due_at=None)
        assert call(2).was_stored
        assert [bool(row.outbox_key) for row in CeleryOutbox.objects.order_by("id")] == [
            False,
            True,
        ]

    def test_a_call_while_the_row_is_in_flight_is_stored(self, call):
        """Its message may run before the caller commits, and would not see what the caller did."""
        call(1)
        (message,) = claim()
        assert call(2).was_stored
        assert call(3).was_stored is False
        settle(Published(message))
        assert waiting() == [(2,)]

    @pytest.mark.parametrize("on_conflict", ["keep", "replace"])
    def test_a_relay_that_settles_after_its_lease_takes_no_call_with_it(self, call, on_conflict):
        call(1)
        with closing(DjangoStore("default")) as store:
            (message,) = store.claim(1, 0.001, "relay")
        wait_for(lambda: not CeleryOutbox.objects.in_flight().exists())
        assert call(2, outbox_on_conflict=on_conflict).was_stored
        settle(Published(message))
        assert waiting() == [(2,)]

    @pytest.mark.parametrize("outcome", [Retry, Deferred])
    def test_a_row_that_is_tried_again_keeps_its_key(self, call, outcome):
        call(1)
        settle(*(outcome(message, "away", 60) for message in claim()))
        assert call(2).was_stored is False
        assert call(3, outbox_on_conflict="replace").was_stored
        row = CeleryOutbox.objects.get()
        assert (row.retries, row.updated_at, row.last_error) == (0, None, None)
        assert abs(row.due_at - row.created_at).total_seconds() < 1

    def test_a_rolled_back_call_leaves_the_key_free(self, call):
        with transaction.atomic():
            call(1)
            transaction.set_rollback(True)
        assert call(2).was_stored

    def test_a_rolled_back_replacement_leaves_the_first(self, call):
        call(1)
        with transaction.atomic():
            call(2, outbox_on_conflict="replace")
            transaction.set_rollback(True)
        assert waiting() == [(1,)]

    def test_a_call_with_an_id_of_the_caller_s_is_another_call(self, call):
        """What waits, or is in flight, may have the same id."""
        assert call(1, task_id="same").was_stored
        assert call(2, task_id="same").was_stored is False
        assert call(3, task_id="same", outbox_on_conflict="replace").was_stored
        assert waiting() == [(3,)]
        claim()
        assert call(4, task_id="same").was_stored
        assert waiting() == [(3,), (4,)]

    def test_a_claim_that_a_crash_undid_takes_no_replacement_with_it(self, call):
        call(1)
        (message,) = claim()
        CeleryOutbox.objects.update(claimed_by=None, claimed_until=None)
        assert call(2, outbox_on_conflict="replace").was_stored
        with closing(DjangoStore("default")) as store:
            assert store.settle([Published(message)], "relay") == 1
        assert waiting() == [(2,)]

    def test_a_row_that_the_caller_has_moved_is_no_deadlock(self, app, call):
        """A relay that died had it: its key is taken from it, but by the session that locked it."""
        first = call(1)
        with closing(DjangoStore("default")) as store:
            store.claim(1, 0.001, "relay")
        wait_for(lambda: not CeleryOutbox.objects.in_flight().exists())
        with transaction.atomic():
            assert app.outbox.reschedule(first.id, countdown=60)
            assert call(2).was_stored
        assert waiting() == [(1,), (2,)]

    def test_outside_a_transaction(self, add):
        first, second = (add.apply_async((n,), outbox_key="k") for n in (1, 2))
        assert (first.was_stored, second.was_stored) == (True, False)

    def test_a_revoked_call_frees_its_key(self, app, call):
        app.control.revoke(call(1).id)
        assert call(2).was_stored

    def test_only_stored_calls_are_reported(self, call):
        created = []

        def receiver(task_id, **_):
            created.append(task_id)

        outbox_message_created.connect(receiver)
        try:
            first, _, third = call(1), call(2), call(3, outbox_on_conflict="replace")
        finally:
            outbox_message_created.disconnect(receiver)
        assert created == [first.id, third.id]


@pytest.mark.usefixtures("database")
class TestMany:
    def test_in_a_bulk(self, app, add):
        with transaction.atomic(), app.outbox_bulk():
            plain = add.delay(0)
            first, second = (add.apply_async((n,), outbox_key="a") for n in (1, 2))
            other = add.apply_async((3,), outbox_key="b")
            assert first.was_stored is None
        assert sorted(waiting()) == [(0,), (1,), (3,)]
        assert (first.was_stored, second.was_stored, other.was_stored) == (True, False, True)
        assert second.id == first.id
        assert not hasattr(plain, "was_stored")

    def test_the_last_replacement_of_a_bulk_counts(self, app, add):
        with transaction.atomic():
            add.apply_async((0,), outbox_key="a")
        with transaction.atomic(), app.outbox_bulk():
            results = [
                add.apply_async((n,), outbox_key="a", outbox_on_conflict="replace")
                for n in (1, 2, 3)
            ]
        assert waiting() == [(3,)]
        assert [each.was_stored for each in results] == [False, False, True]
        assert len({each.id for each in results}) == 1

    def test_thousands_in_a_bulk(self, app, add):
        def store():
            with transaction.atomic(), app.outbox_bulk():
                return [add.apply_async((n,), outbox_key=f"k{n}") for n in range(1500)]

        assert all(each.was_stored for each in store())
        assert not any(each.was_stored for each in store())
        assert CeleryOutbox.objects.count() == 1500

    def test_in_a_group(self, add):
        calls = [add.s(n).set(outbox_key=f"k{n % 2}") for n in range(4)]
        with transaction.atomic():
            group(calls).apply_async()
        with transaction.atomic():
            group(calls).apply_async()
        assert sorted(waiting()) == [(0,), (1,)]

    def test_held_calls_are_debounced(self, call):
        for number in range(5):
            call(number, countdown=30, outbox_on_conflict="replace")
        assert waiting() == [(4,)]
        assert CeleryOutbox.objects.scheduled().count() == 1


@pytest.mark.usefixtures("postgresql")
@pytest.mark.postgresql
class TestTheTask:
    @pytest.fixture
    def reindex(self, app):
        @app.task(name="shop.reindex", shared=False, outbox_key="reindex:{0}")
        def reindex(product, full=False):
            pass

        return reindex

    def test_its_key_is_a_format_of_the_arguments(self, reindex):
        first, second, third = (
            reindex.delay(7),
            reindex.delay(product=7, full=True),
            reindex.delay(8),
        )
        assert (first.was_stored, second.was_stored, third.was_stored) == (True, False, True)
        keys = [row.outbox_key.partition("#")[0] for row in CeleryOutbox.objects.order_by("id")]
        assert keys == ["reindex:7", "reindex:8"]

    def test_names_and_defaults(self, app):
        @app.task(
            name="shop.sync",
            shared=False,
            bind=True,
            outbox_key="{shop}/{mode}",
            outbox_on_conflict="replace",
        )
        def sync(self, shop, *, mode="all"):
            pass

        assert [sync.delay("a").was_stored, sync.delay(shop="a", mode="all").was_stored] == [
            True
        ] * 2
        assert CeleryOutbox.objects.count() == 1

    def test_a_call_may_have_another_key_or_none(self, reindex):
        reindex.delay(7)
        assert reindex.apply_async((7,), outbox_key="other").was_stored
        assert reindex.apply_async((7,), outbox_key=None).was_stored
        assert CeleryOutbox.objects.count() == 3

    def test_a_retry_is_never_dropped(self, make_app):
        """Another call may wait, and does not have to succeed after this one."""
        app = make_app(broker="memory://")

        @app.task(name="shop.flaky", shared=False, bind=True, outbox_key="flaky")
        def flaky(self):
            raise self.retry(countdown=3600)

        assert flaky.delay().was_stored
        tracer = build_tracer(flaky.name, flaky, app=app)
        tracer("id", (), {}, {"id": "id", "task": flaky.name, "delivery_info": {}, "headers": {}})
        held = CeleryOutbox.objects.get(task_id="id")
        assert held.outbox_key is None

    @pytest.mark.parametrize("flow", ["chord", "chain", "link"])
    def test_a_call_that_others_wait_for_is_never_dropped(self, make_app, flow):
        app = make_app(backend="cache+memory://")
        add = app.tasks["enqueue.add"]

        @app.task(name="shop.reindex", shared=False, outbox_key="reindex:{0}")
        def reindex(product):
            pass

        reindex.delay(7)
        with transaction.atomic():
            if flow == "chord":
                chord([reindex.s(7)], add.si(1)).apply_async()
            elif flow == "chain":
                chain(reindex.s(7), add.si(1)).apply_async()
            else:
                reindex.apply_async((7,), link=add.si(1))
        assert [row.outbox_key is None for row in CeleryOutbox.objects.order_by("id")] == [
            False,
            True,
        ]
        with pytest.raises(OutboxError, match="what comes after it would never run"):
            reindex.apply_async((7,), outbox_key="k", link=add.si(1))

    @pytest.mark.parametrize("key", ["k", "{nothing}"])
    def test_a_chain_that_a_worker_continues_does_not_end_at_a_key(self, app, add, key):
        """An error there would fail the task before it, whose work is done."""

        @app.task(name="shop.reindex", shared=False, outbox_key=key)
        def reindex(product):
            pass

        rest = [
            add.si(1),
            reindex.s().set(task_id="next", **({"outbox_key": key} if key == "k" else {})),
        ]
        request = {"id": "id", "task": add.name, "delivery_info": {}, "headers": {}}
        tracer = build_tracer(add.name, add, app=app)
        with setup_default_app(app):
            ended = tracer("id", (1,), {}, {**request, "chain": [dict(each) for each in rest]})
        assert ended.info is None, ended.retval
        assert CeleryOutbox.objects.get().task_id == "next"

    @pytest.mark.parametrize("template", ["{1}{2}", "{nothing}", "{0.pk}", "{", 7])
    def test_a_format_that_does_not_fit_is_refused(self, app, template):
        @app.task(name="shop.reindex", shared=False, outbox_key=template)
        def reindex(product):
            pass

        with pytest.raises(OutboxError, match="does not fit the arguments"):
            reindex.delay(7)
        assert not CeleryOutbox.objects.exists()

    def test_in_a_worker_it_is_stored_without_a_key(self, app, add, caplog):
        @app.task(name="shop.reindex", shared=False, outbox_key="{nothing}")
        def reindex(product):
            pass

        @app.task(name="shop.all", shared=False)
        def reindex_all():
            results.append(reindex.delay(7))

        results = []
        deliver(app, reindex_all)
        assert results[0].was_stored
        assert CeleryOutbox.objects.get().outbox_key is None
        assert "shop.reindex is stored without a key: outbox_key = '{nothing}'" in caplog.text

    def test_a_misspelled_choice_is_refused_in_a_worker_too(self, app, add):
        @app.task(name="shop.all", shared=False)
        def call_all():
            add.apply_async((1,), outbox_key="k", outbox_on_conflict="replce")

        assert isinstance(deliver(app, call_all).retval.exception, OutboxError)
        assert not CeleryOutbox.objects.exists()

    def test_a_choice_needs_a_key(self, add):
        with pytest.raises(OutboxError, match="outbox_on_conflict needs an outbox_key"):
            add.apply_async((1,), outbox_on_conflict="replace")

    @pytest.mark.parametrize("key", ["", 7, b"k", ["k"]])
    def test_a_key_that_is_none_is_refused(self, call, key):
        with pytest.raises(OutboxError, match="must be a text that is not empty"):
            call(1, outbox_key=key)

    def test_an_unknown_choice_is_refused(self, call):
        with pytest.raises(OutboxError, match='must be "keep" or "replace", not \'drop\''):
            call(1, outbox_on_conflict="drop")

    def test_by_name(self, app):
        first, second = (app.send_task("other.task", outbox_key="k") for _ in range(2))
        assert (first.was_stored, second.was_stored) == (True, False)

    def test_excluded_tasks_have_no_keys(self, app, reindex):
        app.conf.outbox_exclude_tasks = ["shop.*"]
        app.conf.broker_url = "memory://"
        assert not hasattr(reindex.apply_async((7,), outbox_key="k"), "was_stored")
        assert not CeleryOutbox.objects.exists()


def test_a_rebuilt_table_still_has_unique_keys(use_database, call):
    """SQLite's tables are rebuilt by migrations that change a column, from what Django knows."""
    use_database("sqlite")
    field = CeleryOutbox._meta.get_field("last_error")
    with connection.schema_editor() as editor:
        editor._remake_table(CeleryOutbox, alter_fields=[(field, field)])
    call(1)
    assert call(2).was_stored is False


class TestConcurrently:
    def test_fifty_transactions_with_one_key_store_one_row(self, database, add):
        begun, results = threading.Barrier(50), []

        def run(number):
            try:
                connection.ensure_connection()
                begun.wait(60)
                with transaction.atomic():
                    results.append(add.apply_async((number,), outbox_key="k"))
            finally:
                connections.close_all()

        run_all(run, range(50))
        assert len(waiting()) == 1
        assert sum(each.was_stored for each in results) == 1
        assert len({each.id for each in results}) == 1

    def test_replacements_are_all_stored_one_after_the_other(self, server, add):
        results = []

        def run(number):
            try:
                with transaction.atomic():
                    add.apply_async((number,), outbox_key="k")
                    results.append(
                        add.apply_async((number,), outbox_key="k", outbox_on_conflict="replace")
                    )
            finally:
                connections.close_all()

        run_all(run, range(20))
        assert all(each.was_stored for each in results)
        assert len(waiting()) == 1

    def test_bulks_of_the_same_keys_do_not_deadlock(self, server, app, add):
        def run(number):
            try:
                numbers = range(100) if number % 2 else reversed(range(100))
                with transaction.atomic(), app.outbox_bulk():
                    for each in numbers:
                        add.apply_async((each,), outbox_key=f"k{each}")
            finally:
                connections.close_all()

        run_all(run, range(10))
        assert CeleryOutbox.objects.count() == 100

    def test_bulks_of_rows_that_wait_or_are_in_flight_do_not_deadlock(self, postgresql, app, add):
        """Those in flight are stored anew, which must not come after a lock of those that wait."""
        keys = [f"k{number:02}" for number in range(40)]
        for round_ in range(3):
            for key in keys:
                add.apply_async((round_,), outbox_key=key, countdown=0)
            claim(len(keys) // 2)

            def run(number, round_=round_):
                try:
                    mine = keys if number % 2 else keys[::-1]
                    with transaction.atomic(), app.outbox_bulk():
                        for key in mine:
                            options = {"outbox_key": key, "outbox_on_conflict": "replace"}
                            add.apply_async((f"{round_} {number}",), **options)
                finally:
                    connections.close_all()

            run_all(run, range(8))
            assert CeleryOutbox.objects.filter(outbox_key__isnull=False).count() == len(keys)

    def test_repeatable_read_meets_a_row_in_flight(self, postgresql, add):
        """The transaction goes on seeing the row as it was, with its key."""
        add.apply_async((1,), outbox_key="k")
        claim()
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT count(*) FROM celery_outbox")
            assert add.apply_async((2,), outbox_key="k").was_stored
            assert add.apply_async((3,), outbox_key="k").was_stored is False
        assert waiting() == [(1,), (2,)]

    def test_rolled_back_ones_leave_one_of_the_others(self, postgresql, add):
        """Not on MySQL: there, of two that wait for a unique key, one may be a deadlock's victim if
        the third is rolled back."""
        results = []

        def run(number):
            try:
                with transaction.atomic():
                    result = add.apply_async((number,), outbox_key="k")
                    if number % 2:
                        transaction.set_rollback(True)
                    else:
                        results.append(result)
            finally:
                connections.close_all()

        run_all(run, range(40))
        assert len(waiting()) == 1
        assert sum(each.was_stored for each in results) == 1

    @pytest.mark.parametrize("change", ["revoke", "reschedule", "send_now"])
    def test_a_change_of_a_replaced_call_leaves_the_new_one_alone(self, server, app, call, change):
        """It was looked for by its id, and then its row was another call's."""
        first = call(1, countdown=60)
        changes = {
            "revoke": lambda: app.outbox.cancel([first.id], lambda _: None),
            "reschedule": lambda: app.outbox.reschedule(first.id, countdown=5),
            "send_now": lambda: app.outbox.send_now(first.id),
        }
        found = []

        def run():
            try:
                found.append(changes[change]())
            finally:
                connections.close_all()

        thread = threading.Thread(target=run)
        with transaction.atomic():
            second = call(2, countdown=600, outbox_on_conflict="replace")
            thread.start()
            wait_for(is_anybody_waiting, pause=0.2)
        thread.join(30)
        assert not found[0]
        row = CeleryOutbox.objects.get()
        assert row.task_id == second.id
        assert (row.due_at - row.created_at).total_seconds() == pytest.approx(600, abs=1)

    def test_the_newest_of_two_with_the_same_id_is_stored(self, server, add):
        options = {"outbox_key": "k", "outbox_on_conflict": "replace", "task_id": "same"}
        caller = []

        def run():
            try:
                caller.append(add.apply_async((2,), **options))
            finally:
                connections.close_all()

        thread = threading.Thread(target=run)
        with transaction.atomic():
            add.apply_async((1,), **options)
            thread.start()
            wait_for(is_anybody_waiting, pause=0.2)
        thread.join(30)
        assert caller[0].was_stored
        assert waiting() == [(2,)]

    def test_those_who_keep_a_row_may_move_it_without_a_deadlock(self, postgresql, app, call):
        first = call(1, countdown=60)
        both = threading.Barrier(2)

        def run(number):
            try:
                with transaction.atomic():
                    call(number)
                    both.wait(30)
                    app.outbox.reschedule(first.id, countdown=number)
            finally:
                connections.close_all()

        run_all(run, [100, 200])
        assert CeleryOutbox.objects.count() == 1

    def test_a_row_that_is_kept_is_published_after_the_commit(self, server, call):
        """The task that runs must see what the caller that was told of it has written."""
        call(1)
        with transaction.atomic():
            assert call(2).was_stored is False
            assert claim_elsewhere() == []
        assert len(claim_elsewhere()) == 1

    def test_those_who_keep_a_row_do_not_wait_for_each_other(self, postgresql, call):
        call(1)
        with transaction.atomic():
            call(2)
            in_thread(lambda: call(3))
        assert waiting() == [(1,)]

    def test_a_row_that_is_kept_wakes_the_relay_after_the_commit(self, postgresql, app, call):
        """A claim may have skipped it, because the caller had locked it."""
        call(1)
        with closing(DjangoStore("default")) as store:
            store.check()
            store.listen()
            assert not store.wait(0.2)
            assert call(2).was_stored is False
            assert store.wait(10)

    def test_a_relay_never_waits_for_a_caller(self, server, call):
        call(1)
        (message,) = claim()
        with transaction.atomic():
            assert call(2).was_stored
            in_thread(lambda: settle(Published(message)))
        assert waiting() == [(2,)]

    @pytest.mark.parametrize("on_conflict", ["keep", "replace"])
    def test_a_call_that_meets_an_open_claim_is_stored(self, server, add, on_conflict):
        """The locking read waits for the claim, finds the row taken, and may leave a lock on it."""
        add.apply_async((1,), outbox_key="k")
        (row_id,) = CeleryOutbox.objects.values_list("id", flat=True)
        with closing(DjangoStore("default")) as store:
            store.check()
            with store._session.transaction():
                store._session.rows("SELECT id FROM celery_outbox FOR UPDATE")
                store._session.run(
                    "UPDATE celery_outbox SET claimed_by = 'relay',"
                    f" claimed_until = {store._dialect.from_now}",
                    [60],
                )
                caller = Caller(add, on_conflict)
                wait_for(is_anybody_waiting, pause=0.2)  # MySQL's answer is up to 0.1 s old
            assert caller.stored()
            if server == "postgresql":  # MySQL has no way to give the lock back
                in_thread(lambda: store.release([row_id], "relay"))
            caller.end()
        assert waiting() == [(1,), (2,)]

    def test_a_killed_transaction_leaves_no_lock(self, server, call):
        holding = threading.Event()

        def hold():
            try:
                with transaction.atomic():
                    call(1)
                    sessions.append(session_id())
                    holding.set()
                    ended.wait(30)
                    connection.close()
            except Exception:
                pass
            finally:
                connections.close_all()

        sessions, ended = [], threading.Event()
        thread = threading.Thread(target=hold)
        thread.start()
        assert holding.wait(30)
        second = []
        waiter = threading.Thread(target=lambda: (second.append(call(2)), connections.close_all()))
        waiter.start()
        kill = {"postgresql": "SELECT pg_terminate_backend(%s)", "mysql": "KILL %s"}[server]
        with connection.cursor() as cursor:
            cursor.execute(kill, [sessions[0]])
        waiter.join(30)
        ended.set()
        thread.join(30)
        assert second[0].was_stored
        assert waiting() == [(2,)]


class Caller:
    """A transaction in another session that calls a task with a key, and stays open."""

    def __init__(self, task, on_conflict):
        self._task, self._on_conflict = task, on_conflict
        self._results, self._ended = [], threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stored(self):
        return wait_for(lambda: self._results)[0].was_stored

    def end(self):
        self._ended.set()
        self._thread.join(30)

    def _run(self):
        try:
            with transaction.atomic():
                options = {"outbox_key": "k", "outbox_on_conflict": self._on_conflict}
                self._results.append(self._task.apply_async((2,), **options))
                self._ended.wait(30)
        finally:
            connections.close_all()


WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND datname = current_database()",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


def is_anybody_waiting():
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":  # it keeps its answer during a transaction
            cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(WAITING[connection.vendor])
        return cursor.fetchone()[0] > 0


def deliver(app, task):
    request = {"id": "id", "task": task.name, "delivery_info": {}, "headers": {}}
    return build_tracer(task.name, task, app=app)("id", (), {}, request)


def run_all(run, numbers):
    errors = []

    def guarded(number):
        try:
            run(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=[number]) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []


def in_thread(run):
    """Another session, which must not wait for this one."""

    def work():
        try:
            done.append(run())
        finally:
            connections.close_all()

    done = []
    thread = threading.Thread(target=work)
    thread.start()
    wait_for(lambda: done, 10)
    thread.join()
    return done[0]


def claim_elsewhere():
    return in_thread(claim)


def session_id():
    sql = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}
    with connection.cursor() as cursor:
        cursor.execute(sql[connection.vendor])
        return cursor.fetchone()[0]
