"""What was promised against what happened: the two ledgers, compared.

`committed` is the table that the producer and the tasks write in the transactions of their calls,
`audit` reads a queue that gets a copy of every message. An extra copy is
explained by a fault if the copy before it arrived around that fault: then its relay could not learn
or not write down that the message had arrived.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tests import helpers
from tests.chaos.plan import Blast
from tests.chaos.poison import FUTURE
from tests.chaos.world import BATCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.faults import Injection
    from tests.chaos.poison import Poison
    from tests.chaos.world import World

Times = dict[str, list[float]]
MARGIN = 4.0
"""Seconds around a fault: a batch may take send_timeout, and the machine may be busy."""


@dataclass
class Verdict:
    """The figures of a run so far, and what is wrong with them."""

    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0
    """Calls whose COMMIT got no answer; the table says whether they were committed."""
    messages: int = 0
    ran: int = 0
    """Tasks that took effect."""
    runs: int = 0
    """Runs of these tasks that got as far as their work, whatever became of it."""
    twice: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    ghosts: list[str] = field(default_factory=list)
    extra: int = 0
    """Messages that arrived once more."""
    unexplained: list[str] = field(default_factory=list)
    extra_by_kind: Counter[str] = field(default_factory=Counter)
    most_by_kind: Counter[str] = field(default_factory=Counter)
    """The most extra copies after one fault of a kind."""
    dead: int = 0
    problems: list[str] = field(default_factory=list)
    latency: dict[str, float] = field(default_factory=dict)

    def judge(self) -> list[str]:
        """Broken promises, in words."""
        promises = {
            "committed and never arrived": self.lost,
            "arrived and never run": self.not_run,
            "arrived or ran without having been committed": self.ghosts,
            "arrived twice without a reason": self.unexplained,
            "took effect twice": self.twice,
        }
        broken = [f"{len(ids)} {what}: {ids[:5]}" for what, ids in promises.items() if ids]
        return broken + self.problems


def wait_until_quiet(world: World, timeout: float = 90) -> int:
    """Nothing left in the table, in the queues or in the workers, and nothing new for a moment.

    Returns how often workers had to be killed because they sat on tasks without running them: that
    is what Celery's prefork pool may do after a restart of the broker, with or without an outbox.
    """
    _wait(world, timeout, lambda: not _rows(world) and not world.messages())
    for hung in range(3):
        with suppress(pytest.fail.Exception):
            _wait(world, 20, lambda: not _rows(world) and not _to_run(world))
            return hung
        for slot in world.slots:
            slot.kill()
    _wait(world, timeout, lambda: not _rows(world) and not _to_run(world))
    return 3


def _wait(world: World, timeout: float, condition: Callable[[], bool]) -> None:
    before = -1

    def quiet() -> bool:
        nonlocal before
        last, before = before, world.audit.count
        return condition() and last == before

    def why() -> str:
        for slot in world.everybody:
            slot.ask_what_it_does()
        rows = world.sql("SELECT count(*), count(claimed_by), max(retries) FROM celery_outbox")
        waiting = sorted(_to_run(world))
        return (
            f"it does not get quiet: rows {rows}, {world.messages()} messages,"
            f" {len(waiting)} have not run, audit {world.audit.error}\n"
            f"{world.said_of(waiting[:3])}\n{world.tails()}"
        )

    helpers.wait_for(quiet, timeout, why, pause=0.3)


def _rows(world: World) -> int:
    sql = "SELECT count(*) FROM celery_outbox WHERE schema_version <> %s"
    return int(world.sql(sql, [FUTURE])[0][0])


def _to_run(world: World) -> set[str]:
    return world.audit.to_run - set(_effects(world))


def _effects(world: World) -> Counter[str]:
    """How often each task took effect."""
    return Counter(task_id for (task_id,) in world.sql("SELECT task_id FROM chaos_effect"))


def compare(world: World, poison: Poison, injections: list[Injection]) -> Verdict:
    """The figures, from both sides."""
    ledger = dict(world.sql("SELECT task_id, extract(epoch FROM at)::float8 FROM chaos_ledger"))
    outcomes = _read_producer(world)
    effects = _effects(world)
    arrivals = world.audit.arrivals
    arrived = set(arrivals)
    verdict = Verdict(
        committed=len(ledger),
        rolled_back=len(outcomes["rolled back"]),
        unknown=len(outcomes["unknown"]),
        messages=sum(map(len, arrivals.values())),
        ran=len(effects),
        runs=world.client.llen("ran"),
        twice=sorted(task_id for task_id, count in effects.items() if count > 1),
        lost=sorted(set(ledger) - arrived),
        not_run=sorted(world.audit.to_run - set(effects)),
        ghosts=sorted((arrived | set(effects)) - set(ledger)),
    )
    if outcomes["committed"] - set(ledger):
        verdict.problems.append("the database forgot what it had committed")
    if outcomes["rolled back"] & set(ledger):
        verdict.problems.append("the database kept what was rolled back")
    _explain(verdict, arrivals, injections, relays=len(world.everybody))
    _look_at_dead_letters(verdict, world, poison)
    verdict.latency = _latency(ledger, arrivals)
    return verdict


def _read_producer(world: World) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {"committed": set(), "rolled back": set(), "unknown": set()}
    ids: list[str] = []
    for line in world.ledger.read_text().splitlines():
        if line.startswith("begin "):
            ids = line.split(" ")[1:]
        elif line in found:
            found[line] |= set(ids)
            ids = []
    return found


def _explain(verdict: Verdict, arrivals: Times, injections: list[Injection], relays: int) -> None:
    crashes = [each for each in injections if each.kind.blast is not Blast.NONE]
    left = {id(each): BATCH * (relays if each.kind.blast is Blast.ALL else 1) for each in crashes}
    blamed: Counter[int] = Counter()
    again = sorted(
        (before, task_id) for task_id, times in arrivals.items() for before in sorted(times)[:-1]
    )
    verdict.extra = len(again)
    for before, task_id in again:
        near = [each for each in crashes if left[id(each)] and _distance(each, before) <= MARGIN]
        if not near:
            verdict.unexplained.append(f"{task_id} at {before:.3f}")
            continue
        cause = min(near, key=lambda each: (_distance(each, before), each.began))
        left[id(cause)] -= 1
        blamed[id(cause)] += 1
        verdict.extra_by_kind[cause.kind.name] += 1
    for each in crashes:
        name = each.kind.name
        verdict.most_by_kind[name] = max(verdict.most_by_kind[name], blamed[id(each)])


def _distance(injection: Injection, moment: float) -> float:
    """Seconds between a moment and a fault; 0 while it lasts."""
    return max(injection.began - moment, moment - injection.ended, 0.0)


def _look_at_dead_letters(verdict: Verdict, world: World, poison: Poison) -> None:
    dead = {row[0] for row in world.sql("SELECT task_id FROM celery_outbox_dead_letter")}
    waiting = world.sql("SELECT task_id, retries, claimed_by FROM celery_outbox")
    verdict.dead = len(dead)
    if dead != poison.deadly:
        verdict.problems.append(
            f"dead letters: {sorted(dead - poison.deadly)[:5]} are no poison, "
            f"{sorted(poison.deadly - dead)[:5]} are missing"
        )
    if set(waiting) != {(task_id, 0, None) for task_id in poison.waiting}:
        verdict.problems.append(f"rows of a version from the future: {waiting[:5]}")


def _latency(ledger: dict[str, float], arrivals: Times) -> dict[str, float]:
    """Seconds from the call to its first arrival, most of them during some fault."""
    waits = sorted(min(arrivals[each]) - at for each, at in ledger.items() if each in arrivals)
    if not waits:
        return {}
    points = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(waits[int((len(waits) - 1) * p)], 3) for name, p in points.items()}
