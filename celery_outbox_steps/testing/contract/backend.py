"""What the contract suite needs besides a Store: to add rows, to read them, and to advance time.

The fixture `backend` returns a `Backend`: one empty outbox table, on which the suite opens any
number of stores. `MemoryBackend` is the one for `MemoryStore` and its subclasses. The helpers below
it are shared by the modules of the suite.
"""

from __future__ import annotations

import time
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

from celery_outbox_steps.messages import Dead, Deferred, Expired, Published, Retry
from celery_outbox_steps.testing.memory_store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from celery_outbox_steps.messages import ClaimedMessage, Outcome
    from celery_outbox_steps.store import Store

    Settles = Callable[[ClaimedMessage], Outcome]

T = TypeVar("T")
LEASE = 300.0
"""Much longer than any test takes."""
OUTCOMES: dict[str, Settles] = {
    "published": Published,
    "retry": lambda message: Retry(message, "e", 60),
    "deferred": lambda message: Deferred(message, "e", 60),
    "dead": lambda message: Dead(message, "e", 1),
    "expired": Expired,
}
each_outcome = pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)


class Backend(Protocol):
    """One outbox table, empty when a test begins."""

    def store(self, *, retention: float | None = None, destinations: Sequence[str] = ()) -> Store:
        """A new store on this table. Called from several threads, and each may use it.

        A store is used by one thread at a time, and not always by the one that made it. With
        `destinations`, it has their messages in `store.deliveries`.
        """

    def add(
        self, count: int = 1, *, due_in: float = 0.0, held: bool = False, **columns: Any
    ) -> list[int]:
        """Put rows into the table, due in `due_in` seconds. Returns their ids, ascending.

        `held`: as a call with an eta stores them. Their `eta` is the time that they are due. With a
        `destination`, and perhaps an `order_key`, they are messages for that.
        `columns` are fields of `ClaimedMessage`; the others get any valid value (`args`, `kwargs`
        and `options`: "[]", "{}" and "{}").
        """

    def add_failed_task(self, **columns: Any) -> int:
        """Put a dead letter of kind "task" into the table. Returns its id."""

    def rows(self, destination: str | None = None) -> list[dict[str, Any]]:
        """All rows for the app's own broker, or for a destination, by id: the columns of
        `ClaimedMessage` that are stored, and `created_at`, `due_at`, `updated_at`, `claimed_by`,
        `claimed_until`, `last_error`, `published_at`."""

    def dead_letters(self) -> list[dict[str, Any]]:
        """All dead letters by id: the contents of the row, `retries` and `failure_reason`; of a
        message for a destination, its former id as `position`."""

    def seconds_until(self, moment: Any) -> float:
        """Seconds from now, by the store's clock, until a time from `rows()`."""

    def pass_time(self, seconds: float) -> None:
        """Let the store's clock advance, or move every stored time into the past."""


class MemoryBackend:
    """Stores in memory that share their rows, as relays share a table, on a clock of its own."""

    def __init__(self, store_class: type[MemoryStore] = MemoryStore) -> None:
        self._shift = 0.0
        self._first = store_class(clock=lambda: time.time() + self._shift)

    def store(
        self,
        *,
        retention: float | None = None,
        destinations: Sequence[str] = (),  # noqa: ARG002  it has all of them
    ) -> MemoryStore:
        return self._first.beside(retention=retention)

    def add(self, count: int = 1, **columns: Any) -> list[int]:
        return [self._first.add(**columns) for _ in range(count)]

    def add_failed_task(self, **columns: Any) -> int:
        return self._first.add_failed_task(**columns)

    def rows(self, destination: str | None = None) -> list[dict[str, Any]]:
        rows = sorted(self._first.snapshot()[0], key=attrgetter("id"))
        return [_columns(row) for row in rows if row.destination == destination]

    def dead_letters(self) -> list[dict[str, Any]]:
        return [
            {
                **_columns(letter.row),
                "id": letter.id,
                "failure_reason": letter.failure_reason,
                "position": None if letter.row.destination is None else letter.row.id,
            }
            for letter in self._first.snapshot()[1]
        ]

    def seconds_until(self, moment: float) -> float:
        return moment - time.time() - self._shift

    def pass_time(self, seconds: float) -> None:
        self._shift += seconds


def only(items: Iterable[T]) -> T:
    """The only item. Fails if there are none or several."""
    (item,) = items
    return item


def ids_of(messages: Iterable[ClaimedMessage]) -> list[int]:
    return [message.id for message in messages]


def eventually(poll: Callable[[], T], timeout: float = 10.0) -> T:
    """The first answer of `poll()` that is true, or the last one when the time is up."""
    deadline = time.monotonic() + timeout
    while not (answer := poll()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return answer


def repeat_until(done: Callable[[], bool], timeout: float = 30.0) -> Iterator[None]:
    """Loop until `done()`, or until the time is up: with a broken store a test fails, not hangs."""
    deadline = time.monotonic() + timeout
    while not done() and time.monotonic() < deadline:
        yield


def _columns(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in type(row).__slots__}
