"""What happens to a fleet, and what is observed: each scenario is run on a `Simulation`.

`survey()` runs all of them for one policy and one size; `report.py` writes what it returns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.fleet.model import Simulation

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.fleet.policies import Policy

STARTED_WITHIN = 10.0
"""Seconds in which all workers start at once."""
DEPLOY = 300.0
"""Seconds in which a rolling deploy replaces all workers."""
OVERLAP = 5.0
"""Seconds for which a new worker and the one that it replaces run together."""
SCALED_DOWN_WITHIN = 5.0
LEFT = 0.05
"""The part of the fleet that is left after the scale-down."""
PATIENCE = 20_000.0
"""Seconds after which a slot that is still free is given up."""


@dataclass(frozen=True)
class Looks:
    """Looks per second of the whole fleet."""

    mean: float
    worst_second: int

    @classmethod
    def between(cls, simulation: Simulation, begin: float, end: float) -> Looks:
        seconds = Counter(int(when) for when in simulation.looks if begin <= when < end)
        return cls(sum(seconds.values()) / (end - begin), max(seconds.values(), default=0))


@dataclass(frozen=True)
class Times:
    """Seconds until something was done, over many runs."""

    p50: float
    p99: float
    worst: float
    best: float

    @classmethod
    def of(cls, values: list[float]) -> Times:
        ordered = sorted(values)
        rank = -(-99 * len(ordered) // 100) - 1
        return cls(median(ordered), ordered[rank], ordered[-1], ordered[0])


@dataclass(frozen=True)
class Effort:
    """How much is simulated: of what costs more in a larger fleet, less."""

    stops: int = 100
    runs: int = 40
    whole: bool = True
    """Also what takes as many events as the fleet has members."""


SIZES = {
    3: Effort(),
    10: Effort(),
    100: Effort(),
    1_000: Effort(runs=20),
    10_000: Effort(runs=5),
}


def calm(
    policy: Policy, members: int, stops: int, *, dies: bool = False, tells: bool = False
) -> tuple[Looks, Times]:
    """Now and then a working relay stops, or dies. Another worker takes its place in the fleet."""
    simulation = Simulation(policy, Random(members), tells=tells)
    simulation.settle(members)
    every = 60.0 if dies else 20.0

    def lose_one() -> None:
        holder = simulation.random.choice(simulation.holders())
        (simulation.kill if dies else simulation.stop)(holder)
        simulation.at(simulation.now + every / 2, simulation.start)

    for number in range(stops):
        simulation.at(every * (number + simulation.random.uniform(0.1, 0.4)), lose_one)
    simulation.run(every * stops)
    looks = Looks.between(simulation, 0, every * stops)
    return looks, Times.of([filled - vacant for vacant, filled in simulation.fills])


@dataclass(frozen=True)
class Start:
    """Everybody starts at once."""

    first_looks: Looks
    looks_after: Looks
    looks_later: Looks
    both_slots: float
    """Seconds until both slots are held, from the start of the first worker."""


def start(policy: Policy, members: int) -> Start:
    """All workers start within ten seconds; then five minutes, and five minutes an hour later."""
    simulation = Simulation(policy, Random(members))
    begun = sorted(simulation.random.uniform(0, STARTED_WITHIN) for _ in range(members))
    for when in begun:
        simulation.at(when, simulation.start)
    simulation.run(3900)
    return Start(
        Looks.between(simulation, 0, STARTED_WITHIN),
        Looks.between(simulation, STARTED_WITHIN, STARTED_WITHIN + 300),
        Looks.between(simulation, 3600, 3900),
        max(filled for _, filled in simulation.fills) - begun[1],
    )


@dataclass(frozen=True)
class Deploy:
    """A rolling deploy of everybody."""

    looks: Looks
    fills: Times
    """Of the slots that became free during the deploy."""
    looks_after: Looks
    fill_after: Times
    """Of a slot whose holder stops in the five minutes after the deploy."""


def deploy(policy: Policy, members: int, runs: int) -> Deploy:
    fills: list[float] = []
    after: list[float] = []
    for seed in range(runs):
        simulation = Simulation(policy, Random(seed))
        _replace_everybody(simulation, members)
        end = DEPLOY + OVERLAP + 1
        simulation.run(end)
        fills += [filled - vacant for vacant, filled in simulation.fills]
        moment = end + simulation.random.uniform(10, 300)
        after.append(_fill_time(simulation, moment))
    looks = Looks.between(simulation, 0, DEPLOY)
    return Deploy(looks, Times.of(fills), _looks_after(policy, members, end), Times.of(after))


def _looks_after(policy: Policy, members: int, end: float) -> Looks:
    simulation = Simulation(policy, Random(0))
    _replace_everybody(simulation, members)
    simulation.run(end + 300)
    return Looks.between(simulation, end, end + 300)


def _replace_everybody(simulation: Simulation, members: int) -> None:
    simulation.settle(members)
    old = simulation.holders() + simulation.standbys()
    simulation.random.shuffle(old)
    for place, member in enumerate(old):
        when = DEPLOY * place / members
        simulation.at(when, simulation.start)
        simulation.at(when + OVERLAP, partial(simulation.stop, member))


def _fill_time(simulation: Simulation, moment: float) -> float:
    """One holder stops at that moment: the seconds until another works."""
    simulation.run(moment)
    simulation.stop(simulation.random.choice(simulation.holders()))
    before = len(simulation.fills)
    while len(simulation.fills) == before and simulation.now < moment + PATIENCE:
        simulation.step()
    return simulation.now - moment


@dataclass(frozen=True)
class ScaleDown:
    """Nearly everybody stops, those who work last."""

    one_works: Times
    all_slots: Times


def scale_down(
    policy: Policy, members: int, runs: int, *, tells: bool = False, dies: bool = False
) -> ScaleDown:
    one: list[float] = []
    both: list[float] = []
    for seed in range(runs):
        simulation = Simulation(policy, Random(seed), tells=tells)
        simulation.settle(members)
        _lose_most(simulation, members, simulation.kill if dies else simulation.stop)
        simulation.run(SCALED_DOWN_WITHIN)
        while not simulation.holders():
            simulation.step()
        one.append(simulation.now - SCALED_DOWN_WITHIN)
        while len(simulation.holders()) < simulation.relays:
            simulation.step()
        both.append(simulation.now - SCALED_DOWN_WITHIN)
    return ScaleDown(Times.of(one), Times.of(both))


def _lose_most(simulation: Simulation, members: int, lose: Callable[[int], None]) -> None:
    """At least two are left: as many as there are slots."""
    standbys = simulation.standbys()
    simulation.random.shuffle(standbys)
    for member in standbys[max(simulation.relays, round(members * LEFT)) :]:
        when = simulation.random.uniform(0, SCALED_DOWN_WITHIN)
        simulation.at(when, partial(lose, member))
    for member in simulation.holders():
        simulation.at(SCALED_DOWN_WITHIN, partial(lose, member))


@dataclass(frozen=True)
class Survey:
    """Everything about one policy in a fleet of one size."""

    members: int
    looks: Looks
    stop: Times
    stop_told: Times | None = None
    death: Times | None = None
    start: Start | None = None
    deploy: Deploy | None = None
    scale_down: ScaleDown | None = None
    scale_down_told: ScaleDown | None = None
    loss: ScaleDown | None = None
    """The same, but all of them die."""


def survey(policy: Policy, members: int, effort: Effort) -> Survey:
    looks, stop = calm(policy, members, effort.stops)
    if not effort.whole:
        return Survey(members, looks, stop)
    _, told = calm(policy, members, effort.stops, tells=True)
    _, death = calm(policy, members, effort.stops, dies=True)
    large = members >= 10
    return Survey(
        members,
        looks,
        stop,
        told,
        death,
        start(policy, members),
        deploy(policy, members, effort.runs) if large else None,
        scale_down(policy, members, effort.runs) if large else None,
        scale_down(policy, members, effort.runs, tells=True) if large else None,
        scale_down(policy, members, effort.runs, dies=True) if large else None,
    )
