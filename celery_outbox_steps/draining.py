"""Publish from this process what is due, without a worker: `celery outbox drain`.

The messages for the app's own broker, and those for each destination, have a relay of their own
here too, one after the other. If one broker is away, the others get their messages all the same;
the caller is told its name. `operate.drain` goes through the databases. Next: `relay.tick`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.errors import ConfigurationError, StoreError
from celery_outbox_steps.events import EventOpener
from celery_outbox_steps.observe.recorders import recorders_for
from celery_outbox_steps.publishers import publisher_for
from celery_outbox_steps.publishers.broker import Broker
from celery_outbox_steps.relay.tick import Relay, new_relay_id
from celery_outbox_steps.settings import RelayConfig, read

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from celery_outbox_steps.destinations import Destination
    from celery_outbox_steps.messages import BatchResult
    from celery_outbox_steps.store import DeliveryStore, DestinationStore, Store

NOT_AVAILABLE = "{} is not available: {}"
SOON = 0.01
"""Seconds. A row that is due within this time is waited for."""


class Draining:
    """The relays of this process for one Store, one at a time.

    `only`: the name of one destination. Without it, those in `skipped` are left out.
    """

    def __init__(
        self, app: Any, store: Store, only: str | None = None, skipped: frozenset[str] = frozenset()
    ) -> None:
        self.problems: list[str] = []
        """Why a broker did not take its messages, which stay in the outbox: one line for each."""
        self._app = app
        self._store = store
        self._only = only
        self._skipped = skipped

    def batches(self) -> Generator[BatchResult, None, None]:
        """Publish, batch by batch. May be closed in between: what is claimed is given back."""
        if self._only is None:
            yield from self._drained(self._own_relay(), "The broker")
        deliveries = self._store.deliveries
        if deliveries is None:
            return
        try:
            for destination in self._wanted():
                yield from self._batches_for(destination, deliveries)
        finally:
            deliveries.close()

    def _wanted(self) -> list[Destination]:
        return [
            each
            for name, each in read(self._app.conf, "destinations").items()
            if name == self._only or (self._only is None and name not in self._skipped)
        ]

    def _batches_for(
        self, destination: Destination, deliveries: DeliveryStore
    ) -> Iterator[BatchResult]:
        try:
            broker = Broker(destination)
        except ConfigurationError as error:
            self.problems.append(str(error))
            return
        try:
            lane = deliveries.lane(destination.name)
            relay = self._relay_for(destination, broker, lane)
            yield from self._drained(relay, f"Destination {destination.name!r}", lane)
        finally:
            broker.close()

    def _drained(
        self, relay: Relay, what: str, lane: DestinationStore | None = None
    ) -> Iterator[BatchResult]:
        try:
            while (result := relay.run_once()).claimed or (lane and _has_more(lane)):
                yield result
                if result.outage:
                    self.problems.append(NOT_AVAILABLE.format(what, result.outage))
                    return
        finally:
            with suppress(StoreError):
                relay.settle_in_hand()  # after Ctrl-C: claimed rows are released at once
            relay.close()

    def _own_relay(self) -> Relay:
        config = RelayConfig.from_app(self._app)
        publisher, recorders = publisher_for(self._app, config.declare), recorders_for(self._app)
        return Relay(self._app, self._store, publisher, config, new_relay_id(), recorders=recorders)

    def _relay_for(self, destination: Destination, broker: Broker, lane: DestinationStore) -> Relay:
        config = RelayConfig.from_app(self._app).of(destination)
        opener = EventOpener(destination, broker.header_prefix, declare=config.declare)
        return Relay(
            self._app,
            lane,
            publisher_for(broker, config.declare),
            config,
            new_relay_id(),
            recorders=recorders_for(self._app, None, destination.name, broker),
            open_row=opener.open,
        )


def _has_more(lane: DestinationStore) -> bool:
    """Whether more rows may be due, although a claim returned none: it had found only messages that
    have to wait for others of their key."""
    return lane.seconds_to_wait(SOON) < SOON
