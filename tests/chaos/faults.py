"""How each fault is done. A fault returns when it is over; what it needs to heal goes on meanwhile.

Workers are replaced at once, so several faults overlap in what they leave behind: a worker is
killed while it reconnects after the restart of the broker, and so on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests import helpers
from tests.chaos.world import LEASE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.plan import Kind, Step
    from tests.chaos.workers import Slot
    from tests.chaos.world import World

STOP_TIMEOUT = 40.0
ON_PROCESSES = {"kill", "warm", "cold", "freeze"}
AIMED = 0.7
"""How many of the faults of processes wait for a batch to be in flight; the others just happen."""


@dataclass
class Injection:
    """A fault that happened. Times are of the wall clock, as the broker's are."""

    kind: Kind
    where: str
    began: float
    ended: float = 0.0
    took: float | None = None
    """Seconds until a worker that was asked to stop was gone."""
    problem: str = ""


class Injector:
    """Does what the plan says."""

    def __init__(self, world: World, say: Callable[[str], None]) -> None:
        self.world = world
        self.done: list[Injection] = []
        self._say = say
        self._behind: list[threading.Thread] = []
        self._frozen: set[str] = set()
        self.hung = 0
        """Workers that did not stop because Celery's prefork pool hung after a broker restart."""

    def inject(self, step: Step) -> None:
        method: Callable[..., Any] = getattr(self, f"_{step.kind.name}")
        slot = self._pick(step)
        if step.kind.name in ON_PROCESSES and step.length < AIMED:
            self._wait_until_busy(slot)
        injection = Injection(step.kind, slot.name, time.time())
        self.done.append(injection)
        self._say(f"{step.kind.title} ({slot.name}, {slot.flavour})")
        try:
            method(slot, step, injection)
        finally:
            injection.ended = injection.ended or time.time()

    def finish(self) -> None:
        """Wait for what still goes on behind our back."""
        for thread in self._behind:
            thread.join(STOP_TIMEOUT + 30)
        self._behind.clear()

    # -- workers ----------------------------------------------------------------------------------

    def _kill(self, slot: Slot, step: Step, injection: Injection) -> None:
        slot.kill()

    def _warm(self, slot: Slot, step: Step, injection: Injection) -> None:
        self._stop(slot, signal.SIGTERM, injection)

    def _cold(self, slot: Slot, step: Step, injection: Injection) -> None:
        self._stop(slot, signal.SIGQUIT, injection)

    def _stop(self, slot: Slot, number: int, injection: Injection) -> None:
        wait = slot.ask_to_stop(number)

        def watch() -> None:
            try:
                injection.took = wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired as exc:
                if "prefork" in exc.cmd and any(each.kind.name == "broker" for each in self.done):
                    self.hung += 1  # with or without an outbox; see `wait_until_quiet`
                else:
                    injection.problem = f"{type(exc).__name__}: {exc}"
            except Exception as exc:
                injection.problem = f"{type(exc).__name__}: {exc}"
            injection.ended = time.time()

        self._in_background(watch)

    def _freeze(self, slot: Slot, step: Step, injection: Injection) -> None:
        pid = slot.pid
        self._frozen.add(slot.name)
        os.kill(pid, signal.SIGSTOP)
        injection.ended = time.time() + LEASE * 1.5

        def wake() -> None:
            # Longer than the lease, by the clock that matters: the database's.
            helpers.wait_for(lambda: time.time() >= injection.ended, LEASE * 3, pause=0.1)
            os.kill(pid, signal.SIGCONT)
            injection.ended = time.time()
            self._frozen.discard(slot.name)

        self._in_background(wake)

    # -- the broker -------------------------------------------------------------------------------

    def _broker(self, slot: Slot, step: Step, injection: Injection) -> None:
        with self.world.audit.paused():
            self.world.rabbit.stop()
            _last(step, 0.0, 2.0)
            self.world.rabbit.start()

    def _alarm(self, slot: Slot, step: Step, injection: Injection) -> None:
        self.world.rabbitmqctl("set_vm_memory_high_watermark", "0.0000001")
        try:
            _last(step, 1.0, 5.0)
        finally:
            self.world.rabbitmqctl("set_vm_memory_high_watermark", "0.4")

    def _cut(self, slot: Slot, step: Step, injection: Injection) -> None:
        if step.length < 0.5:
            slot.broker.cut()
        else:
            slot.broker.cut_after(int(step.length * 20_000))

    def _stall(self, slot: Slot, step: Step, injection: Injection) -> None:
        _stalled(slot.broker, step)

    # -- the database -----------------------------------------------------------------------------

    def _database(self, slot: Slot, step: Step, injection: Injection) -> None:
        self.world.postgres.stop()
        _last(step, 0.0, 1.0)
        self.world.postgres.start()

    def _terminate(self, slot: Slot, step: Step, injection: Injection) -> None:
        self.world.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    def _database_cut(self, slot: Slot, step: Step, injection: Injection) -> None:
        slot.database.cut()

    def _database_stall(self, slot: Slot, step: Step, injection: Injection) -> None:
        _stalled(slot.database, step)

    # -- details ----------------------------------------------------------------------------------

    def _pick(self, step: Step) -> Slot:
        """A worker that is ready and awake. The witness only for what a process must survive."""
        choices = self.world.slots if step.kind.name in ON_PROCESSES else self.world.everybody
        start = int(step.choice * len(choices))
        turn = choices[start:] + choices[:start]

        def found() -> Slot | None:
            usable = (s for s in turn if s.name not in self._frozen and s.ready)
            return next(usable, None)

        return helpers.wait_for(found, 90, self.world.tails, pause=0.1)  # type: ignore[return-value]

    def _wait_until_busy(self, slot: Slot) -> None:
        """Until its relay has claimed rows and not settled them yet; not for long."""
        pattern, end = f"%:{slot.pid}:%", time.monotonic() + 3
        with self.world.connect() as connection:
            while time.monotonic() < end:
                sql = "SELECT 1 FROM celery_outbox WHERE claimed_by LIKE %s LIMIT 1"
                if connection.execute(sql, [pattern]).fetchone():
                    return

    def _in_background(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="fault", daemon=True)
        self._behind.append(thread)
        thread.start()


def _stalled(proxy: Any, step: Step) -> None:
    proxy.stall()
    try:
        _last(step, 0.5, LEASE * 0.4)
    finally:
        proxy.resume()


def _last(step: Step, shortest: float, longest: float) -> None:
    """Let a fault last as long as the plan says: here time itself is the condition."""
    threading.Event().wait(shortest + step.length * (longest - shortest))
