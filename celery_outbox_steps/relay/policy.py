"""The relay's decisions about time: how long to back off, when to stop claiming, how long to pause.

Pure, except for the clock itself: the time is an argument, and nothing sleeps or does I/O. What an
exception is about is decided in `celery_outbox_steps.classify`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

boot_clock = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Seconds by a clock that never jumps back and does not stop while the machine is suspended.

`time.monotonic()` does stop then (Linux), and a lease that has expired would still seem valid."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay after a message's n-th failure: doubling, with up to 10 % jitter, capped."""

    first: float
    longest: float

    def delay(self, retries: int, jitter: float) -> float:
        """Seconds after a failure; `retries` counts the earlier ones, `jitter` is in 0..1."""
        # 2**64 seconds exceed any cap; a larger exponent would only overflow a float.
        base = self.first * 2.0 ** min(retries, 64)
        return min(base * (1 + jitter / 10), self.longest)


class Breaker:
    """Stops the relay from claiming rows while the broker accepts no messages.

    Two outages in a row open it. After the cooldown a single message is the probe; its success
    closes the breaker, its failure opens it for another cooldown. None of this spends a retry.
    """

    OUTAGES = 2

    def __init__(self, cooldown: float) -> None:
        self._cooldown = cooldown
        self._outages = 0
        self._probe_at = 0.0
        self.is_open = False

    def allowance(self, limit: int, now: float) -> int:
        """How many rows may be claimed at `now`."""
        if not self.is_open:
            return limit
        return 1 if now >= self._probe_at else 0

    def outage(self, now: float) -> None:
        self._outages += 1
        self.is_open = self._outages >= self.OUTAGES
        self._probe_at = now + self._cooldown

    def success(self) -> None:
        self._outages = 0
        self.is_open = False

    def forget(self) -> None:
        """Another relay worked meanwhile: what this one knew about the broker is out of date."""
        self.success()

    def probe_now(self) -> None:
        """The broker is known to be alive: do not wait for the cooldown."""
        self._probe_at = 0.0


class IdleSchedule:
    """The pause between two claims: none while rows are waiting, then doubling up to `longest`."""

    SHORTEST = 0.01

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._next = self.SHORTEST

    def after_work(self, *, more: bool) -> float:
        """The pause after a batch; none if more rows are waiting."""
        self._next = min(self.SHORTEST, self._longest)
        return 0.0 if more else self._next

    def after_nothing(self) -> float:
        """The pause after a claim that found nothing."""
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause


def restart_pause(failures: int) -> float:
    """Seconds to pause after the n-th failure in a row of the loop itself, from 0.5 to 5."""
    return min(0.25 * 2.0 ** min(failures, 10), 5.0)
