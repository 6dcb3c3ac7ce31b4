"""A chaos run: rounds of faults under load, and a verdict after each of them.

In a round the producer works, the faults of one deck happen, then everybody comes to rest and the
ledgers are compared. In the end the workers are stopped and must leave nothing behind.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from celery_outbox_steps.settings import BY_NAME
from tests import helpers
from tests.chaos.faults import Injector
from tests.chaos.plan import Plan
from tests.chaos.poison import Poison
from tests.chaos.verdict import Verdict, compare, wait_until_quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.chaos.plan import Step
    from tests.chaos.workers import Vitals
    from tests.chaos.world import World

SESSIONS = """
    SELECT pid, state, left(query, 60) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""
MEMORY_MB = 30.0
SPARE_DESCRIPTORS = 4
LIVENESS_SECONDS = 10.0


@dataclass
class Outcome:
    """Everything that a report tells."""

    seed: int
    seconds: float = 0.0
    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    vitals: list[Vitals] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    """Log events of all workers."""
    slowest_stop: float = 0.0
    workers: int = 0
    refusals: int = 0
    hung: int = 0
    broken: list[str] = field(default_factory=list)


class Run:
    """One run in a world."""

    def __init__(self, world: World, seed: int, say: Callable[[str], None], pause: float) -> None:
        self.world = world
        self.plan = Plan(seed, pause=pause)
        self.outcome = Outcome(seed)
        self.injector = Injector(world, self._say)
        self._poison = Poison(world)
        self._print = say
        self._began = time.monotonic()

    def rounds(self, minutes: float, at_least: int = 1) -> Outcome:
        """Whole rounds, until the time is over; the first broken promise ends it."""
        end, outcome = self._began + minutes * 60, self.outcome
        while not outcome.broken and (time.monotonic() < end or outcome.rounds < at_least):
            self.round(self.plan.round())
        return self.finish()

    def round(self, steps: Iterator[Step]) -> None:
        """One deck of faults, then rest, then the verdict."""
        world, number = self.world, self.outcome.rounds + 1
        world.wait_until_ready()
        world.start_producer(number)
        for step in steps:
            threading.Event().wait(step.pause)
            if step.choice < 0.3:
                self._poison.add()
            self.injector.inject(step)
            self.outcome.faults[step.kind.name] += 1
        self.injector.finish()
        world.stop_producer()
        world.wait_until_ready()
        self.outcome.hung += wait_until_quiet(world) + self.injector.hung
        self.injector.hung = 0
        self.outcome.rounds = number
        self._judge()

    def finish(self) -> Outcome:
        """Stop the workers; see what they leave behind and what they said."""
        outcome = self.outcome
        for slot in self.world.everybody:
            slot.replaces = False
        waits = [slot.ask_to_end() for slot in self.world.everybody]
        for wait in waits:
            wait(60)
        self._no_sessions()
        self._read_logs()
        outcome.seconds = time.monotonic() - self._began
        outcome.workers = sum(slot.started for slot in self.world.everybody)
        outcome.refusals = sum(slot.refusals for slot in self.world.everybody)
        took = [each.took for each in self.injector.done if each.took is not None]
        outcome.slowest_stop = round(max(took, default=0.0), 1)
        return outcome

    # -- checks -----------------------------------------------------------------------------------

    def _judge(self) -> None:
        outcome, world = self.outcome, self.world
        outcome.verdict = compare(world, self._poison, self.injector.done)
        outcome.broken = outcome.verdict.judge()
        outcome.broken += [f"{e.kind.title}: {e.problem}" for e in self.injector.done if e.problem]
        outcome.broken += [f"ended by itself: {w}" for s in world.everybody for w in s.last_words]
        self._look_for_leaks()
        self._look_for_life()
        self._say(_line(outcome))
        for text in outcome.broken:
            self._say(f"BROKEN {text}")

    def _look_for_leaks(self) -> None:
        world, outcome = self.world, self.outcome
        expected = BY_NAME["relays"].default  # one session per relay at work; tasks close theirs

        def settled() -> bool:
            return len(world.sql(SESSIONS)) == expected

        try:
            helpers.wait_for(settled, 15, pause=0.2)
        except pytest.fail.Exception:
            outcome.broken.append(f"{expected} sessions expected: {world.sql(SESSIONS)}")
        outcome.vitals.append(world.witness.vitals())
        first, last = outcome.vitals[0], outcome.vitals[-1]
        if last.threads > first.threads:
            outcome.broken.append(f"threads of the witness: {first.threads} → {last.threads}")
        if last.descriptors > first.descriptors + SPARE_DESCRIPTORS:
            outcome.broken.append(f"descriptors: {first.descriptors} → {last.descriptors}")
        if last.rss_mb > first.rss_mb + MEMORY_MB:
            outcome.broken.append(f"memory of the witness: {first.rss_mb} → {last.rss_mb} MB")

    def _look_for_life(self) -> None:
        """The witness' relay says that it is alive, as a probe would ask."""
        age = time.time() - (self.world.path / "witness.alive").stat().st_mtime
        if age > LIVENESS_SECONDS:
            self.outcome.broken.append(f"the liveness file of the witness is {age:.0f} s old")

    def _no_sessions(self) -> None:
        try:
            helpers.wait_for(lambda: not self.world.sql(SESSIONS), 15, pause=0.2)
        except pytest.fail.Exception:
            self.outcome.broken.append(f"sessions left behind: {self.world.sql(SESSIONS)}")
        with self.world.audit.paused():
            left = self.world.rabbitmqctl("-q", "list_connections", "pid").splitlines()[1:]
        if left:
            self.outcome.broken.append(f"{len(left)} connections to the broker left behind")

    def _read_logs(self) -> None:
        for slot in self.world.everybody:
            for log in slot.logs():
                self._read_log(log)

    def _read_log(self, log: Path) -> None:
        events: Counter[str] = Counter()
        for line in log.read_text(errors="replace").splitlines():
            found = re.search(r"(celery_outbox_[a-z_]+): ", line)
            if found is None:
                continue
            events[found[1]] += 1
            if found[1] == "celery_outbox_relay_error" and "StoreError" not in line:
                self.outcome.broken.append(f"{log.name}: {line}")
        if events["celery_outbox_liveness_failed"] > 1:
            self.outcome.broken.append(f"{log.name}: a full disk fills the log as well")
        self.outcome.events += events

    def _say(self, text: str) -> None:
        self._print(f"{time.monotonic() - self._began:7.1f} s  {text}")


def _line(outcome: Outcome) -> str:
    verdict = outcome.verdict
    return (
        f"round {outcome.rounds}: {verdict.committed} committed, "
        f"{verdict.rolled_back} rolled back, lost {len(verdict.lost)}, "
        f"ghosts {len(verdict.ghosts)}, extra copies {verdict.extra} "
        f"({len(verdict.unexplained)} unexplained), dead {verdict.dead}, "
        f"faults {sum(outcome.faults.values())}, witness {outcome.vitals[-1]}"
    )
