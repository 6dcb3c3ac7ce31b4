"""The statements for destinations: events and their order, lanes, release rates.

A part of `statements.py`, whose `Recording` calls it. What is the same as for the app's own broker,
but for the table and the destination, is not shown twice.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.contract.statements import Recorder

LAKE = "lake"


class DeliveryRecording:
    """Every operation for destinations, once, on the database of a backend."""

    def __init__(self, backend: Any, connection: Any, recorder: Recorder) -> None:
        self._backend = backend
        self._connection = connection
        self._recorder = recorder

    def enqueue(self) -> None:
        from django.db.transaction import atomic

        from celery_outbox_steps.envelope import EVENT_VERSION
        from django_integration.enqueue.order import lock_keys
        from django_integration.enqueue.rows import insert, notify_relay
        from django_integration.schema import Row

        alone = Row("id", "order.paid", "7", "", "{}", *[None] * 6)
        row = alone._replace(destination=LAKE, schema_version=EVENT_VERSION)
        record = partial(self._recorder.record, self._connection)
        with atomic(self._backend.alias), record("lock order keys", "Before events with a key."):
            lock_keys(self._connection, ["order:7", "order:8"])
        with record("enqueue an event", "A row for each destination, here one."):
            insert(self._connection, [row])
        with record("enqueue events", "For two destinations, or of a bulk."):
            insert(self._connection, [row, row])
        if self._connection.vendor != "postgresql":
            return
        with record("enqueue an event and notify", "Wakes the relay of its destination."):
            insert(self._connection, [row], notify=True)
        with record("notify a destination", "Wakes its relay after further events."):
            notify_relay(self._connection, [LAKE])

    def claim(self) -> None:
        lane = self._lane()
        self._backend.add(destination=LAKE)
        with self._record(lane, "claim for a destination", "Lease due rows of it."):
            lane.claim(1, 60, "relay", max_bytes=50_000)

    def order(self) -> None:
        from celery_outbox_steps.messages import Dead, Published
        from celery_outbox_steps.store import DeadLetters
        from django_integration.store.lane import LaneStore

        lane, other = self._lane(), self._lane()
        self._backend.add(3, destination=LAKE, order_key="k")
        (first,) = lane.claim(1, 60, "relay")
        claimed = LaneStore.claim(other, 10, 60, "other")
        purpose = "After a claim of rows with a key: by key, the first row that they wait for."
        with self._record(other, "find what has to wait", purpose):
            other._order._barriers([row.id for row in claimed], [], "other")
        purpose = "What has to wait is given back, due at no time; and the first row of its key?"
        with self._record(other, "hold back", purpose):
            other._order.hold_back(claimed, [], "other")
        self._recorder.leave_out("find what has to wait", "hold back")
        purpose = "With a key: the next row of it is due."
        with self._record(lane, "settle and release the next", purpose):
            lane.settle([Published(first)], "relay")
        fresh = self._lane(looked=False)
        with self._record(fresh, "look after", "Rows that a relay which died left held back."):
            fresh._order.look_after()
        (second, *_) = lane.claim(1, 60, "relay")
        with self._record(lane, "settle dead for a destination", "It keeps its place."):
            lane.settle([Dead(second, "no", 5)], "relay")
        store = self._backend.store()
        store.check()
        with self._recorder.record(
            store._session.wrapper, "replay for a destination", "Back to its former place."
        ):
            store.replay(DeadLetters(destination=LAKE))

    def pace(self) -> None:
        from celery_outbox_steps.rates import Rate

        store = self._backend.store()
        self._backend.add(3)
        claimed = store.claim(3, 60, "relay")
        rate = Rate("mail.*", 2.0)
        with self._record(store, "first use of a rate", "Its row is written."):
            store.pace(rate, claimed[:1], "relay")
        with self._record(store, "pace", "Take turns; give back what exceeds the rate."):
            store.pace(rate, claimed[1:], "relay")
        with self._record(store, "rates", "For `celery outbox status`."):
            store.rates()
        with self._record(store, "use other rates", "When a relay begins to work."):
            store.use_rates([rate._replace(per_second=4.0)])

    def look(self) -> None:
        lane = self._lane()
        with self._record(lane, "sample a destination", "Its gauges."):
            lane.sample()
        store = self._backend.store()
        self._backend.add(destination=LAKE)
        store.check()
        with self._record(store, "stored destinations", "Those that rows are stored for."):
            store.destinations()
        deliveries = self._backend.store(destinations=[LAKE]).deliveries
        deliveries.pauses()
        with self._recorder.record(
            deliveries._session.wrapper, "pauses", "Every few seconds, for all destinations."
        ):
            deliveries.pauses()

    def _lane(self, *, looked: bool = True) -> Any:
        lane = self._backend.store(destinations=[LAKE]).deliveries.lane(LAKE)
        lane._begin_claims()
        if looked:
            lane._order.look_after()
        return lane

    def _record(self, store: Any, name: str, purpose: str) -> Any:
        return self._recorder.record(store._session.wrapper, name, purpose)
