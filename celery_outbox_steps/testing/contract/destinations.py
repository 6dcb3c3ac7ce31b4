"""Messages for a destination are claimed and settled as those for the app's own broker are.

`DestinationContract` runs the promises of claim, lease, attempt and settle once more, on the rows
of one destination, and sees to it that the rows beside them stay as they are. `ordering.py` has
what is different: rows with a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_outbox_steps.messages import Dead, Published
from celery_outbox_steps.store import DeadLetters
from celery_outbox_steps.testing.contract.attempts import AttemptsContract
from celery_outbox_steps.testing.contract.backend import LEASE, ids_of, only
from celery_outbox_steps.testing.contract.claiming import ClaimingContract
from celery_outbox_steps.testing.contract.leases import LeasesContract
from celery_outbox_steps.testing.contract.settling import SettlingContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_outbox_steps.store import DestinationStore
    from celery_outbox_steps.testing.contract.backend import Backend

LAKE = "lake"
OTHER = "other"
UNCHANGED = "task_id", "claimed_by", "claimed_until", "updated_at", "published_at", "retries"


class LaneOfStore:
    """The lane of one destination, and the rest of its store, as if that had no other rows."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._lane = store.deliveries.lane(LAKE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane if hasattr(self._lane, name) else self._store, name)

    def stats(self) -> Any:
        return self._store.stats(destination=LAKE)


class LaneBackend:
    """A backend whose rows are those for one destination. Others are due before each of them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        backend.add(2, due_in=-3600)
        backend.add(2, due_in=-3600, destination=OTHER)
        self._before = self._others()

    def store(self, *, retention: float | None = None) -> Any:
        return LaneOfStore(self._backend.store(retention=retention, destinations=[LAKE]))

    def add(self, count: int = 1, **columns: Any) -> list[int]:
        return self._backend.add(count, destination=LAKE, **columns)

    def rows(self) -> list[dict[str, Any]]:
        return self._backend.rows(LAKE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    @property
    def others_are_unchanged(self) -> bool:
        return self._others() == self._before

    def _others(self) -> list[list[Any]]:
        rows = [*self._backend.rows(), *self._backend.rows(OTHER)]
        return [[row[name] for name in UNCHANGED] for row in rows]


class DestinationContract(ClaimingContract, LeasesContract, AttemptsContract, SettlingContract):
    """What holds for the rows of the app's own broker holds for those of a destination."""

    @pytest.fixture
    def backend(self, backend: Backend) -> Iterator[LaneBackend]:
        lanes = LaneBackend(backend)
        yield lanes
        assert lanes.others_are_unchanged


class LanesContract:
    """The lanes of one Store beside each other."""

    def test_the_own_broker_claims_nothing_of_a_destination(self, backend: Backend) -> None:
        backend.add(destination=LAKE)
        row = only(backend.add())
        assert ids_of(backend.store(destinations=[LAKE]).claim(10, LEASE, "me")) == [row]

    def test_the_destinations_are_those_that_rows_are_stored_for(self, backend: Backend) -> None:
        store = backend.store()
        assert store.destinations() == []
        backend.add(destination=OTHER)
        backend.add(2, destination=LAKE)
        assert store.destinations() == [LAKE, OTHER]

    def test_a_dead_letter_says_which_destination_it_was_for(self, backend: Backend) -> None:
        store, lanes = backend.store(), {name: lane_of(backend, name) for name in (LAKE, OTHER)}
        for name, lane in lanes.items():
            backend.add(destination=name)
            lane.settle([Dead(only(lane.claim(10, LEASE, "me")), "no", 1)], "me")
        backend.add_failed_task()
        assert [each.destination for each in store.list_dead_letters(DeadLetters())] == [
            None, OTHER, LAKE,
        ]  # fmt: skip
        only_lake = DeadLetters(destination=LAKE)
        assert store.count_dead_letters(only_lake) == store.replay(only_lake) == 1
        assert (len(backend.rows(LAKE)), len(backend.rows(OTHER))) == (1, 0)
        assert store.purge_dead_letters(DeadLetters(destination=OTHER)) == 1
        assert len(backend.dead_letters()) == 1

    def test_what_is_scheduled_is_listed_for_all_or_for_one(self, backend: Backend) -> None:
        backend.add(due_in=100, task_id="own", held=True)
        backend.add(due_in=200, task_id="lake", held=True, destination=LAKE)
        backend.add(due_in=50, task_id="other", held=True, destination=OTHER)
        store = backend.store()
        assert [each.task_id for each in store.scheduled()] == ["other", "own", "lake"]
        found = store.scheduled(destination=LAKE)
        assert [(each.task_id, each.destination) for each in found] == [("lake", LAKE)]
        assert store.scheduled("no.*", destination=LAKE) == []

    def test_the_numbers_of_a_lane_count_its_own_rows(self, backend: Backend) -> None:
        backend.add(3)
        backend.add(2, destination=OTHER)
        backend.add(destination=LAKE)
        backend.add(destination=LAKE, due_in=3600)
        store, lane = backend.store(), lane_of(backend)
        lane.claim(1, LEASE, "me")
        stats = store.stats(destination=LAKE)
        assert (stats.in_outbox, stats.in_flight, stats.scheduled) == (2, 1, 1)
        assert [each["relay"] for each in stats.holders] == ["me"]
        assert (store.stats().in_outbox, store.stats().in_flight) == (3, 0)
        assert (lane.sample().in_flight, lane.sample().depth) == (1, 1)

    def test_published_rows_are_purged_in_every_lane(self, backend: Backend) -> None:
        store = backend.store(retention=10, destinations=[LAKE, OTHER])
        backend.add()
        store.settle([Published(only(store.claim(10, LEASE, "me")))], "me")
        for name in (LAKE, OTHER):
            backend.add(destination=name)
            lane = lane_of(backend, name, retention=10)
            lane.settle([Published(only(lane.claim(10, LEASE, "me")))], "me")
        backend.pass_time(20)
        assert store.count_published(10) == 3
        assert sum(iter(lambda: store.purge_published(10), 0)) == 3
        assert store.count_published(0) == 0

    def test_a_call_for_a_destination_is_cancelled_and_hurried_by_its_id(
        self, backend: Backend
    ) -> None:
        backend.add(destination=LAKE, task_id="a", due_in=3600)
        backend.add(destination=LAKE, task_id="b", due_in=3600)
        store, lane = backend.store(destinations=[LAKE]), lane_of(backend)
        assert [each.destination for each in store.scheduled()] == [LAKE, LAKE]
        assert store.send_now(["a"]) == ["a"]
        assert store.cancel(["b"]) == {"b": True}
        assert [message.task_id for message in lane.claim(10, LEASE, "me")] == ["a"]
        assert backend.rows(LAKE)[0]["task_id"] == "a"

    def test_pauses_have_the_names_of_destinations(self, backend: Backend) -> None:
        store = backend.store(destinations=[LAKE])
        deliveries = store.deliveries
        assert deliveries is not None
        store.pause("broken", "operator", LAKE)
        assert {name: pause.reason for name, pause in deliveries.pauses().items()} == {
            LAKE: "broken"
        }
        assert store.fleet().pause is None
        assert (store.resume(LAKE), store.resume(LAKE)) == (True, False)
        assert deliveries.pauses() == {}

    def test_a_wake_up_ends_the_wait_for_all_destinations(self, backend: Backend) -> None:
        deliveries = backend.store(destinations=[LAKE]).deliveries
        assert deliveries is not None
        deliveries.wake()
        assert deliveries.wait(30) is None
        assert deliveries.wait(0) == set()

    def test_a_lane_waits_no_longer_than_until_its_next_row_is_due(self, backend: Backend) -> None:
        lane = lane_of(backend)
        backend.add(destination=OTHER, due_in=1)
        assert lane.claim(10, LEASE, "me") == []
        assert lane.seconds_to_wait(60) == 60
        backend.add(destination=LAKE, due_in=20)
        lane.look_again()
        assert lane.claim(10, LEASE, "me") == []
        assert 10 < lane.seconds_to_wait(60) <= 20
        assert lane.seconds_to_wait(5) == 5


def lane_of(
    backend: Backend, name: str = LAKE, *, retention: float | None = None
) -> DestinationStore:
    """As a new relay for this destination has it."""
    deliveries = backend.store(retention=retention, destinations=[name]).deliveries
    assert deliveries is not None
    return deliveries.lane(name)
