"""The thread around the relay: it starts, wakes, pauses and stops it, and survives its errors.

The worker's step owns a service; the consumer's step reports when the broker connection is made or
lost. The relay works while it has a place for that in the fleet (`worker.membership`), and stands
by without a database session otherwise. While it works, so do the relays for destinations
(`worker.destinations`), whatever becomes of its own broker. The loop itself is in `thread.py`.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from random import random
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery_outbox_steps import fleet, wakeups
from celery_outbox_steps.broker import brief_connection
from celery_outbox_steps.observe.journal import Journal
from celery_outbox_steps.observe.recorder import NO_RECORDERS, Recorders, untraced
from celery_outbox_steps.publishers import Publisher, publisher_for
from celery_outbox_steps.relay.prefetch import PrefetchThread
from celery_outbox_steps.relay.tick import Relay, new_relay_id
from celery_outbox_steps.worker import forks
from celery_outbox_steps.worker.membership import Ability, Membership
from celery_outbox_steps.worker.thread import LIVENESS_INTERVAL, SETTLE_MARGIN, RelayThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_outbox_steps.settings import RelayConfig
    from celery_outbox_steps.store import RelayStore
    from celery_outbox_steps.worker.destinations import DestinationGroup

CHECK_OUT_TIME = 0.5
"""Seconds at the end of a stop in which nothing waits for a destination, so that the slot is given
up in time."""
SPREAD, LONGEST_SPREAD = 0.005, 5.0
"""Seconds over which the members that stand by stop: for each of them, and at most."""


def keep_silent(_: str) -> None:
    """For services that no worker program runs."""


class RelayService(RelayThread):
    """One relay for one Store, in its own thread.

    `worker` is the worker's name. `announce` is told in a few words what this relay will do.
    `destinations` are the relays that work for destinations while this one is at work.
    """

    store: RelayStore

    def __init__(
        self,
        app: Any,
        store: RelayStore,
        config: RelayConfig,
        recorders: Recorders = NO_RECORDERS,
        publisher_factory: Callable[[Any, bool], Publisher] = publisher_for,
        *,
        worker: str = "",
        announce: Callable[[str], None] = keep_silent,
        destinations: DestinationGroup | None = None,
    ) -> None:
        self.store = store
        self.relay_id = new_relay_id()
        self.recorders = recorders
        journal = Journal(store.name, self.relay_id, recorders)
        name = f"outbox-relay-{store.name}"
        super().__init__(name, journal, config)
        self._relay = Relay(
            app,
            store,
            publisher_factory(app, config.declare),
            config,
            self.relay_id,
            should_stop_sending=self._should_stop_sending,
            prefetch=PrefetchThread(),
            recorders=recorders,
        )
        self._app = app
        self._announce = announce
        self.destinations = destinations
        self._membership = Membership(
            store,
            config.relays,
            journal,
            worker,
            announce,
            destinations=None if destinations is None else destinations.states,
        )
        self._broker_is_up = threading.Event()
        self._pause_reason: str | None = None
        self._to_tell: list[str] = []
        self._uses_rates = False
        self._touched = float("-inf")
        # Here, before the pool forks, so that its children can wake the relay of this process too.
        wakeups.register(store.name, store.wake)

    # -- called by the steps and by remote control, from other threads ----------------------------

    def broker_up(self) -> None:
        """The broker is reachable: start relaying, without waiting for a cooldown."""
        self._relay.breaker.probe_now()
        self._broker_is_up.set()
        self._tell_fleet()

    def broker_down(self) -> None:
        """The broker connection is lost: claim nothing until it is back."""
        self._broker_is_up.clear()
        self._changed.set()  # one that stands by has to know since when it can't work

    def pause(self, reason: str) -> None:
        """Pause this relay alone: another one of the fleet takes its slot over."""
        self._pause_reason = reason
        self.journal.paused(reason)
        if self.destinations is not None:
            self.destinations.pause(fleet.Pause(reason, "", 0.0))
        self.check_in_now()

    def resume(self) -> None:
        if self._pause_reason is not None:
            self._pause_reason = None
            self.journal.resumed()
            if self.destinations is not None:
                self.destinations.pause(None)
            self._tell_fleet()

    def check_in_now(self) -> None:
        """Look at once: the outbox was paused or resumed, or a slot is free."""
        self._membership.check_in_now()
        if self.destinations is not None:
            self.destinations.look_at_pauses()
        self._wake()

    def ask_to_stop(self, timeout: float | None = None) -> None:
        """Ask the thread to end, by default with a warm stop: one last tick publishes what the last
        tasks enqueued.

        With a `timeout` nothing more is sent, and the batch in hand is settled or released within
        that many seconds.
        """
        warm = timeout is None
        timeout = self._config.shutdown_timeout if timeout is None else timeout
        sending = max(0.0, timeout - SETTLE_MARGIN) if warm else 0.0
        if self.destinations is not None:
            self.destinations.ask_to_stop(sending, max(0.0, timeout - CHECK_OUT_TIME))
        self.stop_within(sending, timeout)

    def info(self) -> dict[str, Any]:
        """For `inspect`: reads counters, and uses neither the database nor the broker."""
        since = self.journal.last_published
        return {
            "database": self.store.name,
            "relay": self.relay_id,
            "state": self.state,
            "pause_reason": self.pause_reason,
            "published_per_second": round(self.journal.rate(), 2),
            "seconds_since_publish": None if since is None else round(monotonic() - since, 1),
            "last_error": self.journal.last_error,
            "listening": self.store.listening,
            "counters": dict(self.journal.counters),
            **({"destinations": self.destinations.info()} if self.destinations else {}),
        }

    @property
    def state(self) -> str:
        """What the relay is doing, as `inspect outbox` shows it."""
        if self._stopping.is_set():
            return "stopping" if self._thread.is_alive() else "stopped"
        if not self._thread.is_alive():
            return "not started" if self._thread.ident is None else "crashed"
        return self._running_state(at_work=self.at_work)

    def _running_state(self, *, at_work: bool) -> str:
        """What the relay does. One that stands by does not know whether the outbox is paused."""
        if self._pause_reason is not None or (at_work and self._membership.place.pause):
            return fleet.PAUSED
        if not self._broker_is_up.is_set():
            return fleet.WAITING_FOR_BROKER
        if self._failures:
            return fleet.BACKING_OFF
        if self._relay.breaker.is_open:
            return fleet.COOLING_DOWN
        return fleet.RELAYING if at_work else fleet.STANDING_BY

    @property
    def is_connected(self) -> bool:
        """Whether the worker's broker connection is up."""
        return self._broker_is_up.is_set()

    @property
    def has_checked_in(self) -> bool:
        """Whether it has reached its database at least once."""
        return self._membership.is_known

    @property
    def pause_reason(self) -> str | None:
        """Why it is paused; None if it is not."""
        pause = self._membership.place.pause if self.at_work else None
        return self._pause_reason if pause is None else pause.reason

    # -- the thread -------------------------------------------------------------------------------

    def _main(self) -> None:
        self._report(self.journal.started, batch_size=self._config.batch_size)
        super()._main()
        wakeups.unregister(self.store.name, self.store.wake)
        self._report(self.journal.stopped, counters=dict(self.journal.counters))

    def _loop_once(self) -> None:
        if not self.at_work and not self._relay.in_hand:
            self._stand_by()
        self._check_in_if_due()
        if self.at_work:
            self._work()
        else:
            self._run_unit(self._relay.settle_in_hand)
            with forks.barrier:
                self._relay.close()  # no session, no LISTEN, no broker connection

    def _work(self) -> None:
        self._sample()  # also while the broker is down: that is when the depth matters
        if not self._may_relay():
            self._run_unit(self._relay.settle_in_hand)  # what was published before it had to stop
            self._wait_for_change(min(self._config.idle_time, self._until_check_in()))
            return
        pause = self._pause_after(self._run_unit(self._relay.run_once))
        self._wait_and_note(self.store.wait, min(pause, self._until_check_in()))

    def _shut_down(self) -> None:
        """One last tick if there is time for it; then settle, release and close."""
        if self._membership.is_known and not self.at_work and not self._should_stop_sending():
            # If those who worked have stopped, what the last tasks enqueued is published here.
            self._wait_among(self._membership.place.standbys)
            self._run_with_backoff(self._check_in)
        if self._may_relay() and not self._should_stop_sending():
            self._run_with_backoff(self._run_unit, self._relay.run_once)
        self._settle_at_stop()
        if self.destinations is not None:
            self.destinations.join()
        if self._membership.is_known:
            self._run_with_backoff(self._check_out)
        self._run_with_backoff(self._relay.close)
        self._tell_standbys()

    # -- the place in the fleet --------------------------------------------------------------------

    @property
    def at_work(self) -> bool:
        """Whether it holds a slot, or needs none. False: it stands by."""
        return self._membership.place.at_work

    def _stand_by(self) -> None:
        """Wait for the next check-in, or for a reason to check in before that."""
        while not self._stopping.is_set() and (pause := self._until_check_in()):
            self._wait_for_change(pause)

    def _until_check_in(self) -> float:
        return self._membership.due_in(self._ability(), monotonic())

    def _ability(self) -> Ability:
        return Ability(
            is_connected=self._broker_is_up.is_set(),
            is_paused=self._pause_reason is not None,
            is_failing=self._failures > 0 or self._relay.breaker.is_open,
        )

    def _check_in_if_due(self) -> None:
        if not self._until_check_in() and not self._stopping.is_set():
            self._check_in()

    @untraced
    def _check_in(self) -> None:
        was_at_work = self.at_work
        with forks.barrier:
            state = self._running_state(at_work=True)
            self._membership.check_in(state, self._ability(), monotonic())
        if was_at_work and not self.at_work:
            self._relay.breaker.forget()
        if self.at_work and not self._uses_rates:
            self._use_rates()
        if self.destinations is not None and self.destinations.at_work != self.at_work:
            self.destinations.work(at_work=self.at_work)

    def _use_rates(self) -> None:
        """Once: what waits may have turns from rates that were changed since."""
        with forks.barrier:
            forgotten = self.store.use_rates(self._config.rates.values())
        self._uses_rates = True
        if forgotten:
            self._report(self.journal.rates_changed, forgotten)

    @untraced
    def _check_out(self) -> None:
        with forks.barrier:
            self._to_tell = self._membership.check_out()

    def _tell_standbys(self) -> None:
        """Tell a few of those that stand by that a slot is free.

        They would find it anyway, but after a scale-down it may be a while until the turn of one
        that is left. So this is worth a moment, but not the time that a broker that is away costs.
        """
        if not self._to_tell or not self._broker_is_up.is_set():
            return
        with suppress(Exception), brief_connection(self._app) as connection:
            self._app.control.broadcast(
                "outbox_check_in", destination=self._to_tell, connection=connection
            )

    def _wait_among(self, others: int) -> None:
        """Spread the last check-ins of a fleet that is stopped as a whole."""
        self._changed.clear()
        self._wait_for_change(min(LONGEST_SPREAD, SPREAD * others) * random())  # noqa: S311

    # -- details -----------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        super()._failed(error)
        if self._failures == 1 and not self._membership.is_known:
            self._announce(f"waiting for database {self.store.name}")

    def _may_relay(self) -> bool:
        paused = self._pause_reason is not None or self._membership.place.pause is not None
        return self.at_work and self._broker_is_up.is_set() and not paused

    def _tell_fleet(self) -> None:
        """A relay at work can work again: others should see that now, not at the next check-in."""
        if self.at_work:
            self._membership.check_in_now()
        self._wake()

    def _wake(self) -> None:
        super()._wake()
        self.store.wake()

    def _note_movement(self) -> None:
        """For `/livez`, and for the liveness file."""
        super()._note_movement()
        if self._config.liveness_file and monotonic() - self._touched >= LIVENESS_INTERVAL:
            self._touched = monotonic()
            try:
                Path(self._config.liveness_file).touch()
            except (OSError, ValueError) as exc:  # ValueError: a path with a NUL in it
                self._report(self.journal.liveness_failed, exc)
