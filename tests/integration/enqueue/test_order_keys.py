"""Events with a key: transactions take turns, so that rows are in the order of the commits."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_integration.models import CeleryOutboxDelivery
from tests.helpers import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

SERVERS = [
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mysql", marks=pytest.mark.mysql),
]
DESTINATIONS = {
    name: {"url": "amqp://guest@127.0.0.1:1//", "exchange": "domain"} for name in ("events", "lake")
}
ADVISORY_LOCKS = (
    "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
    " WHERE locktype = 'advisory' AND datname = current_database()"
)
BLOCKED = {
    "postgresql": f"{ADVISORY_LOCKS} AND NOT granted",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}
TIMEOUT = 20


@pytest.fixture(params=[*SERVERS, "sqlite"])
def database(request: pytest.FixtureRequest, use_database: Callable[..., None]) -> str:
    use_database(request.param)
    return str(request.param)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, use_database: Callable[..., None]) -> str:
    use_database(request.param)
    return str(request.param)


@pytest.fixture
def app(make_app: Callable[..., Any]) -> Any:
    return make_app(outbox_destinations=DESTINATIONS)


class Transaction:
    """A transaction of its own, in a thread of its own: each step runs when the test says so."""

    def __init__(self, *steps: Callable[[], Any]) -> None:
        self._steps = steps
        self._go = [threading.Event() for _ in steps]
        self._done = [threading.Event() for _ in steps]
        self._end = threading.Event()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin(self, step: int) -> None:
        self._go[step].set()

    def step(self, step: int) -> None:
        """Run this step to its end."""
        self.begin(step)
        assert self._done[step].wait(TIMEOUT)

    def is_done(self, step: int) -> bool:
        return self._done[step].is_set()

    def end(self) -> None:
        """Run the steps that are left, and commit."""
        for go in self._go:
            go.set()
        self._end.set()
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with transaction.atomic():
                for step, go, done in zip(self._steps, self._go, self._done, strict=True):
                    assert go.wait(TIMEOUT)
                    step()
                    done.set()
                assert self._end.wait(TIMEOUT)
        except Exception as error:  # the test looks at it
            self.error = error
        finally:
            connections.close_all()


def publish(app: Any, data: Any, key: str | None = "k", to: str = "events") -> Callable[[], Any]:
    return lambda: app.outbox.publish("order.paid", data, to=to, key=key)


def fail() -> None:
    raise LookupError


def wait_until_blocked(database: str) -> None:
    """Until a transaction waits for another one. SQLite can't tell."""
    if database != "sqlite":
        # MariaDB answers from a cache until nobody has asked for 0.1 s.
        wait_for(lambda: _count(BLOCKED[database]), pause=0.15)


def _count(statement: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return int(cursor.fetchone()[0])


def stored() -> list[str]:
    return list(CeleryOutboxDelivery.objects.order_by("id").values_list("args", flat=True))


def test_the_second_transaction_with_a_key_waits_for_the_commit_of_the_first(
    database: str, app: Any
) -> None:
    first, second = Transaction(publish(app, 1), publish(app, 2)), Transaction(publish(app, 3))
    first.step(0)
    second.begin(0)
    wait_until_blocked(database)
    first.step(1)
    assert not second.is_done(0)
    first.end()
    second.end()
    assert (first.error, second.error) == (None, None)
    assert stored() == ["1", "2", "3"]


def test_after_a_rollback_the_second_goes_on(database: str, app: Any) -> None:
    first, second = Transaction(publish(app, 1), fail), Transaction(publish(app, 2))
    first.step(0)
    second.begin(0)
    wait_until_blocked(database)
    first.end()
    second.end()
    assert second.error is None
    assert stored() == ["2"]


@pytest.mark.parametrize(
    "others", [{"key": "another"}, {"key": None}, {"key": "k", "to": "lake"}], ids=str
)
def test_another_key_no_key_and_another_destination_do_not_wait(
    server: str, app: Any, others: dict[str, Any]
) -> None:
    first, second = Transaction(publish(app, 1)), Transaction(publish(app, 2, **others))
    first.step(0)
    second.step(0)
    second.end()
    assert stored() == ["2"]
    first.end()
    assert stored() == ["1", "2"]


def test_a_transaction_that_ends_by_itself_waits_as_well(server: str, app: Any) -> None:
    first = Transaction(publish(app, 1))
    first.step(0)

    def alone() -> None:
        with suppress(OperationalError):
            publish(app, 2)()
        connections.close_all()

    second = threading.Thread(target=alone)
    second.start()
    wait_until_blocked(server)
    first.end()
    second.join(TIMEOUT)
    assert stored() == ["1", "2"]


def test_keys_of_a_bulk_are_locked_in_one_order_everywhere(server: str, app: Any) -> None:
    """However many transactions publish the same keys in bulks, none of them is a deadlock."""
    keys, rounds, errors = [f"order:{number}" for number in range(50)], 20, []

    def run(order: list[str]) -> None:
        try:
            for _ in range(rounds):
                with transaction.atomic(), app.outbox_bulk():
                    for key in order:
                        publish(app, 1, key)()
        except OperationalError as error:
            errors.append(error)
        finally:
            connections.close_all()

    both = [threading.Thread(target=run, args=(order,)) for order in (keys, keys[::-1])]
    for each in both:
        each.start()
    for each in both:
        each.join(TIMEOUT)
    assert errors == []
    assert len(stored()) == 2 * rounds * len(keys)


def test_keys_that_are_locked_in_opposite_order_are_a_deadlock_that_the_database_reports(
    server: str, app: Any
) -> None:
    first = Transaction(publish(app, 1, "a"), publish(app, 2, "b"))
    second = Transaction(publish(app, 3, "b"), publish(app, 4, "a"))
    first.step(0)
    second.step(0)
    first.begin(1)
    wait_until_blocked(server)
    second.begin(1)
    first.end()
    second.end()
    (error,) = filter(None, (first.error, second.error))
    assert isinstance(error, OperationalError)
    assert stored() in (["1", "2"], ["3", "4"])


@pytest.mark.postgresql
def test_a_transaction_with_very_many_keys_leaves_the_server_locks_for_others(
    use_database: Callable[..., None], app: Any
) -> None:
    """All sessions share the memory for locks: without any left, the others' statements fail."""
    use_database("postgresql")
    with transaction.atomic():
        with app.outbox_bulk():
            for number in range(5000):
                publish(app, number, f"order:{number}")()
        assert _count(ADVISORY_LOCKS) <= 1024
    assert len(stored()) == 5000
