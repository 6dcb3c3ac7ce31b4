"""The relays for destinations: a thread for each, so that one that hangs delays no other.

They work while the relay of the app's own broker has a slot, but not only while that broker is up:
each has its own schedule, breaker, connections and retries. Their database statements take turns on
one connection. One more thread waits for notifications on it and wakes those that are meant; it
starts the others once it knows which of them are paused.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery_outbox_steps import fleet, wakeups
from celery_outbox_steps.events import EventOpener
from celery_outbox_steps.fleet import REFRESH
from celery_outbox_steps.observe.journal import Journal
from celery_outbox_steps.observe.recorder import NO_RECORDERS, Recorders
from celery_outbox_steps.publishers import Publisher, publisher_for
from celery_outbox_steps.relay.prefetch import PrefetchThread
from celery_outbox_steps.relay.tick import Relay, new_relay_id
from celery_outbox_steps.worker import forks
from celery_outbox_steps.worker.thread import LIVENESS_INTERVAL, LoopThread, RelayThread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_outbox_steps.destinations import Destination
    from celery_outbox_steps.fleet import Pause
    from celery_outbox_steps.publishers.broker import Broker
    from celery_outbox_steps.settings import RelayConfig
    from celery_outbox_steps.store import DeliveryStore, DestinationStore

PARKED = 60.0
"""Seconds between two looks of a thread that has nothing to do."""


class DestinationRelay(RelayThread):
    """The relay for one destination, in its own thread. It is idle until `work()`."""

    store: DestinationStore

    def __init__(
        self,
        app: Any,
        destination: Destination,
        deliveries: DeliveryStore,
        config: RelayConfig,
        *,
        broker: Broker,
        recorders: Recorders = NO_RECORDERS,
        publisher_factory: Callable[[Any, bool], Publisher] = publisher_for,
    ) -> None:
        self.destination = destination.name
        self.recorders = recorders
        self.relay_id = new_relay_id()
        self.store = deliveries.lane(destination.name)
        own = config.of(destination)
        self._broker = broker
        journal = Journal(self.store.name, self.relay_id, recorders, destination.name)
        name = f"outbox-relay-{self.store.name}-{destination.name}"
        super().__init__(name, journal, own)
        opener = EventOpener(destination, broker.header_prefix, declare=own.declare)
        self._relay = Relay(
            app,
            self.store,
            publisher_factory(broker, own.declare),
            own,
            self.relay_id,
            should_stop_sending=self._should_stop_sending,
            prefetch=PrefetchThread(),
            recorders=recorders,
            open_row=opener.open,
        )
        self._at_work = threading.Event()
        self._woken = threading.Event()
        self._is_idle = True
        self.pause: Pause | None = None
        self._noted_pause: Pause | None = None

    # -- called from other threads -----------------------------------------------------------------

    def work(self, *, at_work: bool) -> None:
        """Begin to work, or stop: then the batch in hand is settled, and connections are closed."""
        if at_work:
            self._at_work.set()
            if not self.is_started:
                self.start()
        else:
            self._at_work.clear()
        self._is_idle = not self.is_started
        self._wake()

    def set_pause(self, pause: Pause | None) -> None:
        """Pause, or resume with None."""
        before, self.pause = self.pause, pause
        if (before is None) != (pause is None):
            self._wake()

    def note_pause(self, pause: Pause | None) -> None:
        """Log when this destination is paused by its name, and when that ends."""
        before, self._noted_pause = self._noted_pause, pause
        if pause is not None and before is None:
            self.journal.outbox_paused(pause)
        elif pause is None and before is not None:
            self.journal.outbox_resumed()

    def rows_stored(self) -> None:
        """Rows for this destination may be due. A pause after an error is not cut short."""
        self.store.look_again()
        self._woken.set()

    @property
    def at_work(self) -> bool:
        return self._at_work.is_set() and self.is_started

    @property
    def is_idle(self) -> bool:
        """Whether it stands by, and needs no connection any more."""
        return self._is_idle and not self.at_work

    @property
    def state(self) -> str:
        """What the relay is doing, as the fleet shows it."""
        if self.has_crashed:
            return "crashed"
        if not self.at_work:
            return fleet.STANDING_BY
        if self.pause is not None:
            return fleet.PAUSED
        if self._failures:
            return fleet.BACKING_OFF
        return fleet.COOLING_DOWN if self.breaker_is_open else fleet.RELAYING

    def info(self) -> dict[str, Any]:
        """For `inspect`."""
        return {
            "destination": self.destination,
            "state": self.state,
            "pause_reason": None if self.pause is None else self.pause.reason,
            "published_per_second": round(self.journal.rate(), 2),
            "seconds_still": round(self.seconds_still, 1) if self.is_started else None,
            "last_error": self.journal.last_error,
            "counters": dict(self.journal.counters),
        }

    # -- the thread -------------------------------------------------------------------------------

    def _loop_once(self) -> None:
        if not self.at_work:
            self._park()
            return
        self._is_idle = False
        self._sample()
        if self.pause is not None:
            self._run_unit(self._relay.settle_in_hand)
            self._wait_for_change(min(PARKED, self._config.sample_interval))
            return
        pause = self._pause_after(self._run_unit(self._relay.run_once))
        self._wait_and_note(self._woken.wait, self.store.seconds_to_wait(pause))
        self._woken.clear()

    def _park(self) -> None:
        """Settle what is in hand, close all connections, and wait."""
        self._run_unit(self._relay.settle_in_hand)
        self._close()
        self._relay.breaker.forget()
        self._is_idle = True
        self._wait_for_change(PARKED)

    def _shut_down(self) -> None:
        if self.at_work and self.pause is None and not self._should_stop_sending():
            self._run_with_backoff(self._run_unit, self._relay.run_once)
        self._settle_at_stop()
        self._run_with_backoff(self._close)
        self._is_idle = True

    def _close(self) -> None:
        with forks.barrier:
            self._relay.close()
            self._broker.close()

    def _wake(self) -> None:
        super()._wake()
        self._woken.set()


class DestinationGroup(LoopThread):
    """The relays for destinations of one Store in this worker, and the thread that wakes them."""

    def __init__(self, deliveries: DeliveryStore, relays: Sequence[DestinationRelay]) -> None:
        recorders = relays[0].recorders
        journal = Journal(deliveries.name, new_relay_id(), recorders)
        super().__init__(f"outbox-destinations-{deliveries.name}", journal)
        self.relays = tuple(relays)
        self._deliveries = deliveries
        self._recorders = recorders
        self._own_pause: Pause | None = None
        self._at_work = threading.Event()
        self._look_at_pauses_at = float("-inf")
        self._wakes = _wakes(deliveries, [relay.destination for relay in relays])
        # Here, before the pool forks: see `RelayService`.
        for name, wake in self._wakes.items():
            wakeups.register(name, wake)

    # -- called from other threads -----------------------------------------------------------------

    def work(self, *, at_work: bool) -> None:
        """The relay of this worker has a slot now, or has none any more."""
        if at_work:
            self._at_work.set()
            if not self.is_started:
                self.start()
        else:
            self._at_work.clear()
        self.look_at_pauses()

    @property
    def at_work(self) -> bool:
        return self._at_work.is_set() and self.is_started

    def pause(self, pause: Pause | None) -> None:
        """Pause all of them in this worker alone; None: resume them."""
        self._own_pause = pause
        self.look_at_pauses()

    def look_at_pauses(self) -> None:
        """A destination may be paused or resumed."""
        self._look_at_pauses_at = float("-inf")
        self._wake()

    def ask_to_stop(self, sending: float, timeout: float) -> None:
        for relay in self.relays:
            relay.stop_within(sending, timeout)
        self.stop_within(sending, timeout)

    def join(self) -> None:
        super().join()
        for name, wake in self._wakes.items():
            wakeups.unregister(name, wake)

    def info(self) -> list[dict[str, Any]]:
        return [relay.info() for relay in self.relays]

    def states(self) -> dict[str, dict[str, Any]]:
        """What the fleet is told, while this worker is at work."""
        if not self.at_work:
            return {}
        return {
            relay.destination: {
                "state": relay.state,
                "rate": round(relay.journal.rate(), 2),
                "last_error": relay.journal.last_error,
                "away_seconds": int(relay.journal.away_seconds),
            }
            for relay in self.relays
        }

    # -- the thread -------------------------------------------------------------------------------

    def _loop_once(self) -> None:
        if self.at_work:
            self._attend()
        else:
            self._rest()

    def _attend(self) -> None:
        """Keep the relays at work, and wake those that rows are stored for."""
        self._put_to_work()
        named = self._deliveries.wait(LIVENESS_INTERVAL)
        for relay in self.relays:
            if named is None or relay.destination in named:
                relay.rows_stored()

    def _put_to_work(self) -> None:
        """Have all relays work that are not paused. The pauses are known before the first claim."""
        if monotonic() >= self._look_at_pauses_at:
            self._look_at_pauses_at = monotonic() + REFRESH
            self._look_at_pauses()
        for relay in self.relays:
            if not relay.at_work:
                relay.work(at_work=True)

    def _rest(self) -> None:
        """Have the relays stop; close the connection once none needs it."""
        for relay in self.relays:
            if relay.at_work:
                relay.work(at_work=False)
        if all(relay.is_idle for relay in self.relays):
            with forks.barrier:
                self._deliveries.close()
            self._wait_for_change(PARKED)
        else:
            self._wait_for_change(LIVENESS_INTERVAL)

    def _shut_down(self) -> None:
        """One that got its slot while it stops, as the last of its fleet, has relays to start."""
        if self.at_work and not self._should_stop_sending():
            self._run_with_backoff(self._put_to_work)
        for relay in self.relays:
            relay.join()
        with suppress(Exception), forks.barrier:
            self._deliveries.close()

    def _look_at_pauses(self) -> None:
        with forks.barrier:
            pauses = self._recorders.run_untraced(self._deliveries.pauses)
        everywhere = self._own_pause or pauses.get("")
        for relay in self.relays:
            pause = pauses.get(relay.destination)
            relay.set_pause(everywhere or pause)
            relay.note_pause(pause)

    def _failed(self, error: BaseException) -> None:  # noqa: ARG002  whatever it is
        self._look_at_pauses_at = float("-inf")

    def _wake(self) -> None:
        super()._wake()
        self._deliveries.wake()


def _wakes(deliveries: DeliveryStore, destinations: Sequence[str]) -> dict[str, Callable[[], None]]:
    """By name, what wakes the relay of one destination, or all of them."""
    return {
        wakeups.for_destinations(deliveries.name): deliveries.wake,
        **{
            wakeups.for_destination(deliveries.name, each): partial(deliveries.wake, each)
            for each in destinations
        },
    }
