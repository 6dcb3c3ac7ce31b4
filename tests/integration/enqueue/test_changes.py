"""A change of mind: calls that still wait are revoked or get another time, with the transaction."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing, suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from celery import group
from celery.app.control import Control
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connections, transaction
from django.db.transaction import TransactionManagementError
from kombu.exceptions import OperationalError

from celery_outbox_steps.errors import OutboxError
from celery_outbox_steps.messages import Deferred
from django_integration.models import CeleryOutbox
from django_integration.store import DjangoStore
from tests.helpers import wait_for
from tests.proj.relaying import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VENDORS = ("postgresql", "mysql", "sqlite")
LEASE = 300.0


@pytest.fixture(params=VENDORS)
def database(request: pytest.FixtureRequest, use_database: Callable[..., None]) -> str:
    use_database(request.param)
    return str(request.param)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The ids of every revoke that was broadcast to the workers."""
    ids: list[Any] = []

    def broadcast(self: Any, command: str, arguments: Any = None, *_: Any, **__: Any) -> Any:
        assert command == "revoke"
        ids.append(arguments["task_id"])

    monkeypatch.setattr(Control, "broadcast", broadcast)
    return ids


@pytest.fixture
def relay() -> Iterator[DjangoStore]:
    store = DjangoStore("default")
    yield store
    store.close()


def waiting() -> set[str]:
    return {row.task_id for row in rows()}


class Boom(Exception):
    pass


def test_a_revoke_deletes_what_waits_and_works_with_the_broker_down(
    database: str, app: Any, add: Any
) -> None:
    held, due, other = add.apply_async((1,), countdown=60), add.delay(2), add.delay(3)
    held.revoke()
    due.revoke(terminate=True, signal="SIGKILL")
    assert waiting() == {other.id}


def test_a_list_is_revoked_and_only_the_rest_is_broadcast(
    database: str, app: Any, add: Any, told: list[Any]
) -> None:
    result = group(add.s(n) for n in range(3)).apply_async(countdown=60)
    app.control.revoke([*(each.id for each in result), "elsewhere"])
    assert (waiting(), told) == (set(), [["elsewhere"]])


def test_the_result_of_a_group_revokes_all_of_it(database: str, add: Any, told: list[Any]) -> None:
    group(add.s(n) for n in range(3)).apply_async(countdown=60).revoke()
    assert (waiting(), told) == (set(), [])


def test_a_revoke_is_rolled_back_with_the_transaction(
    database: str, add: Any, told: list[Any]
) -> None:
    result = add.apply_async((1,), countdown=60)
    with suppress(Boom), transaction.atomic():
        result.revoke()
        assert waiting() == set()
        raise Boom
    assert (waiting(), told) == ({result.id}, [])
    with transaction.atomic():
        result.revoke()
    assert (waiting(), told) == (set(), [])


def test_what_is_not_in_the_table_is_broadcast_as_it_was_given(
    database: str, app: Any, told: list[Any]
) -> None:
    app.control.revoke("one")
    app.control.revoke(["two", "three"])
    assert told == ["one", ["two", "three"]]


def test_without_a_row_and_without_a_broker_it_is_celerys_own_error(
    database: str, make_app: Callable[..., Any]
) -> None:
    app = make_app(broker_transport_options={"max_retries": 0}, broker_connection_timeout=0.1)
    with pytest.raises((OperationalError, OSError)):
        app.AsyncResult("elsewhere").revoke()


def test_what_a_relay_holds_is_broadcast_and_not_deleted(
    database: str, add: Any, told: list[Any], relay: DjangoStore
) -> None:
    result = add.delay(1)
    assert len(relay.claim(10, LEASE, "relay")) == 1
    result.revoke()
    assert (waiting(), told) == ({result.id}, [result.id])


def test_what_may_have_left_before_is_deleted_and_broadcast_after_the_commit(
    database: str, add: Any, told: list[Any], relay: DjangoStore
) -> None:
    result = add.delay(1)
    (message,) = relay.claim(10, LEASE, "relay")
    relay.settle([Deferred(message, "interrupted", 60)], "relay")
    with suppress(Boom), transaction.atomic():
        result.revoke()
        raise Boom
    assert (waiting(), told) == ({result.id}, [])
    with transaction.atomic():
        result.revoke()
        assert told == []
    assert (waiting(), told) == (set(), [[result.id]])


def test_what_may_have_left_is_deleted_with_the_broker_down_and_other_hooks_run(
    database: str, app: Any, add: Any, relay: DjangoStore, caplog: pytest.LogCaptureFixture
) -> None:
    result, ran = add.delay(1), []
    (message,) = relay.claim(10, LEASE, "relay")
    relay.settle([Deferred(message, "the broker is away", 60)], "relay")
    with transaction.atomic():
        result.revoke()
        transaction.on_commit(lambda: ran.append("own hook"))
    assert (waiting(), ran) == (set(), ["own hook"])
    assert f"celery_outbox_revoke_untold: {result.id}" in caplog.text


def test_a_transaction_that_ends_with_commit_can_change_calls(
    database: str, app: Any, add: Any, told: list[Any], relay: DjangoStore
) -> None:
    attempted = add.delay(1)
    (message,) = relay.claim(10, LEASE, "relay")
    relay.settle([Deferred(message, "interrupted", 60)], "relay")
    held = add.apply_async((2,), countdown=60)
    transaction.set_autocommit(False)
    try:
        attempted.revoke()
        assert app.outbox.reschedule(held.id, countdown=90)
        assert app.outbox.send_now(held.id)
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert (waiting(), told) == ({held.id}, [[attempted.id]])
    assert CeleryOutbox.objects.due().count() == 1


def test_ids_that_differ_in_case_are_other_ids(
    database: str, app: Any, add: Any, told: list[Any]
) -> None:
    add.apply_async((1,), countdown=60, task_id="order-a")
    app.control.revoke("ORDER-A")
    assert app.outbox.send_now("Order-A") is False
    assert (waiting(), told) == ({"order-a"}, ["ORDER-A"])


def test_revokes_by_stamps_are_celerys_own(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(Control, "broadcast", lambda self, *args, **kwargs: told.append(args[0]))
    app.control.revoke_by_stamped_headers({"customer": "7"})
    assert told == ["revoke_by_stamped_headers"]


def test_a_revoke_that_names_workers_is_left_to_them(
    database: str, app: Any, add: Any, told: list[Any]
) -> None:
    result = add.apply_async((1,), countdown=60)
    app.control.revoke(result.id, destination=["celery@one"])
    assert (waiting(), told) == ({result.id}, [result.id])


def test_replies_say_what_was_deleted(database: str, app: Any, add: Any, told: list[Any]) -> None:
    result, said = add.apply_async((1,), countdown=60), []
    replies = app.control.revoke(result.id, reply=True, callback=said.append)
    assert replies == said == [{"database": {"ok": "1 deleted from the outbox"}}]


def test_a_call_of_the_same_bulk_can_be_revoked_and_rescheduled(
    database: str, app: Any, add: Any, told: list[Any]
) -> None:
    with transaction.atomic(), app.outbox_bulk():
        one, two = add.apply_async((1,), countdown=60), add.apply_async((2,), countdown=60)
        one.revoke()
        assert app.outbox.send_now(two.id) is True
    assert told == []
    assert list(CeleryOutbox.objects.due().values_list("task_id", flat=True)) == [two.id]


def test_a_call_of_an_outer_bulk_is_not_silently_kept(
    database: str, app: Any, add: Any, told: list[Any]
) -> None:
    """Written inside the inner block, it would be rolled back with that."""
    with transaction.atomic(), app.outbox_bulk():
        result = add.apply_async((1,), countdown=60)
        for change in (result.revoke, partial(app.outbox.send_now, result.id)):
            with pytest.raises(OutboxError, match="outside the inner atomic"), transaction.atomic():
                change()
        with transaction.atomic():
            app.control.revoke("elsewhere")
    assert (waiting(), told) == ({result.id}, ["elsewhere"])


def test_a_call_can_be_given_another_time(database: str, app: Any, add: Any) -> None:
    result = add.apply_async((1,), countdown=60)
    assert app.outbox.reschedule(result.id, countdown=7200) is True
    (row,) = rows()
    assert (row.due_at - row.created_at).total_seconds() == pytest.approx(7200, abs=5)
    assert row.eta == pytest.approx(row.due_at, abs=timedelta(seconds=0.1))
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    assert app.outbox.reschedule(result.id, eta=tomorrow.isoformat()) is True
    assert rows()[0].due_at == pytest.approx(tomorrow, abs=timedelta(milliseconds=1))


def test_a_time_that_has_passed_makes_it_due_now_and_not_earlier(
    database: str, app: Any, add: Any
) -> None:
    result = add.apply_async((1,), countdown=60)
    assert app.outbox.reschedule(result.id, countdown=-1000) is True
    (row,) = rows()
    assert row.due_at >= row.created_at
    assert CeleryOutbox.objects.due().count() == 1


def test_sending_now_makes_it_due(database: str, app: Any, add: Any) -> None:
    result = add.apply_async((1,), countdown=60)
    assert app.outbox.send_now(result.id) is True
    assert CeleryOutbox.objects.due().count() == 1


def test_other_times_are_rolled_back_with_the_transaction(
    database: str, app: Any, add: Any
) -> None:
    result = add.apply_async((1,), countdown=60)
    before = rows()[0].due_at
    with suppress(Boom), transaction.atomic():
        assert app.outbox.reschedule(result.id, countdown=7200)
        assert app.outbox.send_now(result.id)
        raise Boom
    assert rows()[0].due_at == before


def test_what_is_gone_or_held_by_a_relay_did_not_wait_any_more(
    database: str, app: Any, add: Any, relay: DjangoStore
) -> None:
    result = add.delay(1)
    assert app.outbox.reschedule("unknown", countdown=1) is False
    assert app.outbox.send_now("unknown") is False
    assert len(relay.claim(10, LEASE, "relay")) == 1
    assert app.outbox.reschedule(result.id, countdown=1) is False
    assert app.outbox.send_now(result.id) is False


def test_a_call_is_not_moved_beyond_its_expiry(database: str, app: Any, add: Any) -> None:
    result = add.apply_async((1,), countdown=60, expires=600)
    before = rows()[0].due_at
    with pytest.raises(OutboxError, match="expires 3000 seconds before"), transaction.atomic():
        app.outbox.reschedule(result.id, countdown=3600)
    assert rows()[0].due_at == before
    assert app.outbox.reschedule(result.id, countdown=timedelta(seconds=500)) is True
    assert rows()[0].due_at > before


@pytest.mark.parametrize("task_id", [["an-id"], None, 7, b"id"], ids=repr)
def test_one_id_is_taken_at_a_time(app: Any, task_id: Any) -> None:
    for change in (partial(app.outbox.reschedule, countdown=1), app.outbox.send_now):
        with pytest.raises(TypeError, match="the id of one task"):
            change(task_id)


def test_a_revoke_of_what_is_no_id_is_left_to_celery(
    database: str, app: Any, add: Any, told: list[Any]
) -> None:
    held = add.apply_async((1,), countdown=60)
    app.control.revoke([7, None, held.id])
    app.control.revoke(None)
    assert (waiting(), told) == (set(), [[7, None], []])


@pytest.mark.parametrize("times", [{}, {"eta": datetime.now(timezone.utc), "countdown": 1}])
def test_reschedule_takes_one_time(app: Any, times: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="either eta or countdown"):
        app.outbox.reschedule("id", **times)


def test_every_database_with_an_outbox_is_looked_at(
    use_database: Callable[..., None], make_app: Callable[..., Any], told: list[Any]
) -> None:
    use_database("postgresql")
    use_database("sqlite", alias="orders")
    app = make_app(outbox_databases=["default", "orders"])
    add = app.tasks["enqueue.add"]
    one = add.apply_async((1,), countdown=60)
    two = add.apply_async((2,), countdown=60, outbox_using="orders")
    assert app.outbox.reschedule(two.id, countdown=90) is True
    app.control.revoke([one.id, two.id])
    assert (rows(), rows("orders"), told) == ([], [], [])


def test_with_the_database_down_the_workers_are_told_and_the_error_is_djangos(
    use_database: Callable[..., None], app: Any, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_database("postgresql")
    connections["default"].close()
    with monkeypatch.context() as away:
        away.setitem(connections["default"].settings_dict, "PORT", "1")
        with pytest.raises(DatabaseError):
            app.control.revoke("somewhere")
        assert told == ["somewhere"]
        with pytest.raises(DatabaseError):
            app.outbox.send_now("somewhere")


def test_in_a_transaction_that_failed_nobody_is_told(
    database: str, app: Any, add: Any, told: list[Any]
) -> None:
    """It can only be rolled back: then the call still waits, and has to run."""
    held = add.apply_async((1,), countdown=60).id
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            app.control.revoke(held)
    assert (told, waiting()) == ([], {held})


def test_in_an_event_loop_a_revoke_works_and_other_changes_name_the_way(
    database: str, add: Any, app: Any, told: list[Any]
) -> None:
    """Flower, for one, revokes in its event loop."""
    one, two = add.apply_async((1,), countdown=60), add.apply_async((2,), countdown=60)

    async def revoke() -> None:
        app.control.revoke([one.id, "elsewhere"])

    async def reschedule() -> None:
        app.outbox.reschedule(two.id, countdown=5)

    asyncio.run(revoke())
    with pytest.raises(SynchronousOnlyOperation, match=r"sync_to_async\(app.outbox.reschedule\)"):
        asyncio.run(reschedule())
    assert (waiting(), told) == ({two.id}, [["elsewhere"]])


@pytest.mark.parametrize("vendor", ["postgresql", "mysql"])
def test_a_revoke_that_is_not_committed_yet_keeps_relays_off_the_row(
    vendor: str, use_database: Callable[..., None], add: Any, told: list[Any]
) -> None:
    use_database(vendor)
    result, other = add.delay(1), add.delay(2)
    with closing(DjangoStore("default")) as relay:
        with suppress(Boom), transaction.atomic():
            result.revoke()
            assert [each.task_id for each in relay.claim(10, LEASE, "relay")] == [other.id]
            raise Boom
        (claimed,) = wait_for(lambda: relay.claim(10, LEASE, "relay"))
        assert claimed.task_id == result.id


@pytest.mark.parametrize("vendor", ["postgresql", "mysql"])
def test_a_revoke_waits_for_a_claim_that_is_not_committed_and_is_broadcast_then(
    vendor: str, use_database: Callable[..., None], add: Any, told: list[Any]
) -> None:
    use_database(vendor)
    result, begun = add.delay(1), threading.Event()

    def revoke() -> None:
        begun.set()
        result.revoke()
        connections["default"].close()

    thread = threading.Thread(target=revoke)
    with transaction.atomic():
        claim = DjangoStore("default", connection=connections["default"])
        assert len(claim.claim(10, LEASE, "relay")) == 1
        thread.start()
        begun.wait(5)
        thread.join(0.3)
        assert thread.is_alive()
    thread.join(10)
    assert (waiting(), told) == ({result.id}, [result.id])


@pytest.mark.parametrize("vendor", ["postgresql", "mysql"])
def test_two_who_revoke_the_same_calls_do_not_deadlock(
    vendor: str, use_database: Callable[..., None], app: Any, add: Any, told: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    use_database(vendor)
    monkeypatch.setattr("django_integration.store.waiting.CHUNK", 1)
    first, second = sorted(add.delay(number).id for number in range(2))
    begun = threading.Event()

    def revoke_in_the_other_order() -> None:
        begun.set()
        with transaction.atomic():
            app.control.revoke([second, first])
        connections["default"].close()

    thread = threading.Thread(target=revoke_in_the_other_order)
    with transaction.atomic():
        app.control.revoke(first)
        thread.start()
        begun.wait(5)
        thread.join(0.3)
        assert thread.is_alive()
        app.control.revoke(second)
    thread.join(10)
    assert (waiting(), told) == (set(), [[second, first]])
