"""Threads that survive their errors: `RelayThread` is the one around a relay.

No exception leaves the thread: it is reported, and the loop goes on after a pause. While a unit of
the relay's work runs, forks wait (`worker.forks`). `service.py` is the thread for the app's own
broker, `destinations.py` has those for destinations. The next step of the path is
`celery_outbox_steps.relay.tick`.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.observe.recorder import untraced
from celery_outbox_steps.relay.policy import IdleSchedule, restart_pause
from celery_outbox_steps.worker import forks

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_outbox_steps.messages import BatchResult
    from celery_outbox_steps.observe.journal import Journal
    from celery_outbox_steps.observe.recorder import Recorders
    from celery_outbox_steps.relay.tick import Relay
    from celery_outbox_steps.settings import RelayConfig
    from celery_outbox_steps.store import Sample

    class Sampled(Protocol):
        """A Store that has gauges."""

        def sample(self) -> Sample: ...


LIVENESS_INTERVAL = 1.0
LONGEST_STILL = 180.0
"""Seconds without a movement of a loop after which `/livez` fails, at least: an operating system
needs about 130 to give up connecting to a host that does not answer."""
SAMPLE_KEPT = 60.0
"""Seconds after which a sample that should have been replaced is not shown any more."""
SETTLE_MARGIN = 1.0
"""Seconds at the end of a warm stop in which nothing more is sent, only settled and released."""


class LoopThread:
    """A loop in a thread of its own. Subclasses say what one turn of it is, and what comes after
    the last one."""

    def __init__(self, name: str, journal: Journal) -> None:
        self.journal = journal
        self._failures = 0
        self._stopping = threading.Event()
        self._changed = threading.Event()
        self._send_deadline = self._stop_deadline = float("inf")
        self._moved = monotonic()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    # -- called from other threads -----------------------------------------------------------------

    def start(self) -> None:
        self._moved = monotonic()
        self._thread.start()

    def stop_within(self, sending: float, timeout: float) -> None:
        """Ask the thread to end: to send nothing more after `sending` seconds, and to settle or
        release its batch within `timeout`. A later call can only shorten the remaining time."""
        self._send_deadline = min(self._send_deadline, monotonic() + sending)
        self._stop_deadline = min(self._stop_deadline, monotonic() + timeout)
        self._stopping.set()
        self._wake()

    def join(self) -> None:
        """Wait until the thread has ended, or until its time is up."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, self._stop_deadline - monotonic()))

    @property
    def is_started(self) -> bool:
        return self._thread.ident is not None

    @property
    def has_crashed(self) -> bool:
        """Whether the thread has ended although nothing asked it to."""
        return self.is_started and not self._thread.is_alive() and not self._stopping.is_set()

    @property
    def seconds_still(self) -> float:
        """Seconds since the loop moved last: a few, unless a call in it hangs."""
        return monotonic() - self._moved

    @property
    def longest_still(self) -> float:
        """From then on it counts as hanging."""
        return LONGEST_STILL

    # -- the thread -------------------------------------------------------------------------------

    def _main(self) -> None:
        while not self._stopping.is_set():
            self._run_with_backoff(self._loop_once)
            self._note_movement()
        self._shut_down()

    def _loop_once(self) -> None:
        raise NotImplementedError

    def _shut_down(self) -> None:
        raise NotImplementedError

    def _run_with_backoff(self, step: Callable[..., Any], *args: Any) -> None:
        """Run a step. An exception is reported and followed by a pause; the thread continues."""
        try:
            step(*args)
        except BaseException as exc:  # noqa: BLE001  a receiver's SystemExit would end the thread too
            self._failures += 1
            self._failed(exc)
            pause = restart_pause(self._failures)
            self._report(self.journal.failed, exc, self._failures, pause)
            self._wait_for_change(pause)
        else:
            failures, self._failures = self._failures, 0
            if failures and not self._stopping.is_set():  # closing a lost session is no recovery
                self._report(self.journal.recovered, failures)

    def _failed(self, error: BaseException) -> None:
        """Called after each failure, before it is reported."""

    def _report(self, event: Callable[..., None], *args: Any, **fields: Any) -> None:
        """Report an event. Log handlers and filters are the project's code, and may raise."""
        with suppress(BaseException):
            event(*args, **fields)

    def _wait_for_change(self, pause: float) -> None:
        """Wait for a change of this thread's state, without using the database."""
        self._wait_and_note(self._changed.wait, pause)
        self._changed.clear()

    def _wait_and_note(self, wait: Callable[[float], Any], pause: float) -> None:
        """Wait until woken, or for `pause` seconds, and note meanwhile that the loop moves."""
        end = min(monotonic() + pause, self._stop_deadline)
        while (remaining := end - monotonic()) > 0:
            if wait(min(remaining, LIVENESS_INTERVAL)):
                return
            self._note_movement()

    def _note_movement(self) -> None:
        self._moved = monotonic()

    def _should_stop_sending(self) -> bool:
        return monotonic() >= self._send_deadline

    def _wake(self) -> None:
        self._changed.set()


class RelayThread(LoopThread):
    """The loop around one relay. Subclasses set the attributes below before the thread starts."""

    _relay: Relay
    recorders: Recorders
    store: Sampled

    def __init__(self, name: str, journal: Journal, config: RelayConfig) -> None:
        super().__init__(name, journal)
        self._config = config
        self._idle = IdleSchedule(config.idle_time)
        self._sampled = float("-inf")
        self._last_sample: tuple[Sample | None, float] = None, self._sampled

    @property
    def longest_still(self) -> float:
        """From then on it counts as hanging: no tick takes that long, also with a slow broker."""
        return max(LONGEST_STILL, 6 * self._config.send_timeout)

    @property
    def breaker_is_open(self) -> bool:
        """Whether it claims next to nothing, because the broker accepted no messages."""
        return self._relay.breaker.is_open

    @property
    def at_work(self) -> bool:
        """Whether the relay is to publish."""
        raise NotImplementedError

    @property
    def sample(self) -> Sample | None:
        """The last sample, while this relay is at work and the sample is not out of date."""
        sample, taken = self._last_sample
        is_fresh = monotonic() - taken <= self._config.sample_interval + SAMPLE_KEPT
        return sample if is_fresh and self.at_work else None

    # -- the thread -------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, StoreError) and self._failures > 1:
            self._relay.leave_orphans()  # the database was away, it was not one statement

    def _settle_at_stop(self) -> None:
        """Settle and release what is in hand, as long as there is time."""
        while self._relay.in_hand and monotonic() < self._stop_deadline:
            self._run_with_backoff(self._run_unit, self._relay.settle_in_hand)

    def _run_unit(self, unit: Callable[[], BatchResult]) -> BatchResult:
        """Run a unit of the relay's work inside the fork barrier, and report its result.

        A broker that is silent makes each attempt hang. It must not delay forks again and again.
        """
        barrier = forks.barrier.without_delay() if self.breaker_is_open else forks.barrier
        with barrier:
            result = unit()
        with forks.barrier:
            self.journal.batch(result)  # a metrics library has locks that a fork would copy
        return result

    def _pause_after(self, result: BatchResult) -> float:
        if result.claimed:
            return self._idle.after_work(more=result.full and not result.outage)
        return self._idle.after_nothing()

    @untraced
    def _sample(self) -> None:
        due = monotonic() - self._sampled >= self._config.sample_interval
        if due and self.recorders.want_samples:
            self._sampled = monotonic()
            with forks.barrier:
                sample = self.store.sample()
                self._last_sample = sample, self._sampled
                self.journal.sampled(sample)
