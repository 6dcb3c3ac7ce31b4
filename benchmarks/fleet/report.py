"""The page docs/benchmarks/fleet.md and its plot, from the surveys of `scenarios.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import plots
from benchmarks.fleet.scenarios import DEPLOY, LEFT, SCALED_DOWN_WITHIN, SIZES, STARTED_WITHIN
from benchmarks.results import Section, number
from celery_outbox_steps.fleet import MEMBERSHIP, REFRESH, TOLD, TURN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from benchmarks.fleet.scenarios import Looks, ScaleDown, Survey, Times

INTRODUCTION = f"""\
# Simulation of the fleet

`python -m benchmarks.fleet` writes this page. Nothing here is measured: it is a simulation, the
same on every machine, of how standbys look for a free slot. There are two slots, a slot holder
checks in every {REFRESH:g} s, and a membership lasts {MEMBERSHIP:g} s.

The rule: at its check-in, a standby takes the first turn from now on that no other standby has;
turns are {TURN:g} s apart. So the whole fleet looks about once per second, however many members it
has, and the turn of a member that stops is taken by the next one that checks in. A check-in reads
and writes without a lock: members that check in within the same few milliseconds do not see each
other.

A relay that stops tells up to {TOLD} standbys by remote control to look at once. This is a help,
not a part of the rule: the message may be lost, and a dead relay sends none. So the tables are for
the turns alone, unless they say "told". Stops and deaths were simulated
{SIZES[3].stops} times, deploys and scale-downs {SIZES[10].runs} times, with 1,000 members
{SIZES[1000].runs} and with 10,000 members {SIZES[10000].runs} times.
"""
DESCRIBED = {
    "calm": """\
## Nothing special happens

Now and then a working relay stops, or dies. The time to fill its slot is counted from that moment:
after a death it includes the rest of the membership. A fleet of 3 has one standby.
""",
    "start": f"""\
## Everybody starts at once

All workers start within {STARTED_WITHIN:g} s. Each looks when it starts. Those who start within the
same few milliseconds do not see each other's turns; they spread at random, and some look in the
same second until they have chosen again.
""",
    "deploy": f"""\
## A rolling deploy of everybody

All workers are replaced within {DEPLOY:g} s: the new one starts, then the old one stops. A new
worker looks when it starts. The last columns are for a working relay that stops in the five
minutes after the deploy.
""",
    "scale_down": f"""\
## A scale-down to {LEFT:.0%}

Nearly all workers stop within {SCALED_DOWN_WITHIN:g} s, those that work last. Turns alone are bad
at this: those who are left chose theirs in a large fleet, and look one after another with long
pauses. This is what the message is for. The last columns are for as many that die instead: the
slots are free after {MEMBERSHIP:g} s, and nobody tells.
""",
    "policies": """\
## Other rules

In a fleet of 1,000. "Last in the queue" is a turn after the last turn of all. "Pause in proportion"
is a pause of as many seconds as there are standbys, times 0.5 to 1.5. Both are as cheap, and both
leave a hole after a deploy: the new workers' turns are far away, and the old workers' are gone.
""",
}


def write(folder: Path, ours: list[Survey], others: dict[str, Survey]) -> None:
    """Replace the page and its plot."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fleet.md").write_text("\n".join(page(ours, others)))
    (folder / "fleet.svg").write_text(plots.bars(_chart(ours)))


def page(ours: list[Survey], others: dict[str, Survey]) -> Iterator[str]:
    yield INTRODUCTION
    yield "![Time to fill a slot](fleet.svg)\n"
    yield DESCRIBED["calm"]
    yield from _calm(ours)
    yield DESCRIBED["start"]
    yield from _start(ours)
    yield DESCRIBED["deploy"]
    yield from _deploy(ours)
    yield DESCRIBED["scale_down"]
    yield from _scale_down(ours)
    yield DESCRIBED["policies"]
    yield from _policies(others)


def _calm(surveys: list[Survey]) -> Iterator[str]:
    heads = ["members", "looks/s", "worst second"]
    heads += ["after a stop, s: p50", "p99", "worst", "told: worst"]
    heads += ["after a death, s: p50", "p99", "worst"]
    return _table(
        heads,
        (
            [
                f"{each.members:,}",
                *_looks(each.looks),
                *_times(each.stop),
                _times(each.stop_told)[-1],
                *_times(each.death),
            ]
            for each in surveys
        ),
    )


def _start(surveys: list[Survey]) -> Iterator[str]:
    heads = ["members", "first looks/s", "in the 5 minutes after: looks/s", "worst second"]
    heads += ["an hour later: looks/s", "worst second", "both slots held after, s"]
    return _table(
        heads,
        (
            [
                f"{each.members:,}",
                number(each.start.first_looks.mean),
                *_looks(each.start.looks_after),
                *_looks(each.start.looks_later),
                number(each.start.both_slots),
            ]
            for each in surveys
            if each.start
        ),
    )


def _deploy(surveys: list[Survey]) -> Iterator[str]:
    heads = ["members", "during it: looks/s", "slot filled, s: p50", "worst"]
    heads += ["after it: looks/s", "worst second", "slot filled, s: p50", "worst"]
    return _table(
        heads,
        (
            [
                f"{each.members:,}",
                number(each.deploy.looks.mean),
                number(each.deploy.fills.p50),
                number(each.deploy.fills.worst),
                *_looks(each.deploy.looks_after),
                number(each.deploy.fill_after.p50),
                number(each.deploy.fill_after.worst),
            ]
            for each in surveys
            if each.deploy
        ),
    )


def _scale_down(surveys: list[Survey]) -> Iterator[str]:
    heads = ["members", "turns alone: one works after, s: p50", "worst"]
    heads += ["both slots: p50", "worst", "told: one works after, s: p50", "worst"]
    heads += ["both slots: p50", "worst", "all die: both slots, s: p50", "worst"]
    return _table(
        heads,
        (
            [
                f"{each.members:,}",
                *_down(each.scale_down),
                *_down(each.scale_down_told),
                *_down(each.loss)[2:],
            ]
            for each in surveys
            if each.scale_down
        ),
    )


def _policies(surveys: dict[str, Survey]) -> Iterator[str]:
    heads = ["rule", "looks/s", "worst second", "after a stop, s: p50", "p99", "worst"]
    heads += ["after a deploy, s: p50", "worst", "after a scale-down, both slots, s: p50", "worst"]
    return _table(
        heads,
        (
            [name, *_looks(each.looks), *_times(each.stop), *_after_deploy(each), *_down_both(each)]
            for name, each in surveys.items()
        ),
    )


def _table(heads: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _looks(looks: Looks) -> list[str]:
    return [number(looks.mean), str(looks.worst_second)]


def _times(times: Times | None) -> list[str]:
    return ["-"] * 3 if times is None else [number(v) for v in (times.p50, times.p99, times.worst)]


def _down(down: ScaleDown | None) -> list[str]:
    if down is None:
        return ["-"] * 4
    times = (down.one_works.p50, down.one_works.worst, down.all_slots.p50, down.all_slots.worst)
    return [number(each) for each in times]


def _after_deploy(survey: Survey) -> list[str]:
    if survey.deploy is None:
        return ["-"] * 2
    return [number(survey.deploy.fill_after.p50), number(survey.deploy.fill_after.worst)]


def _down_both(survey: Survey) -> list[str]:
    return _down(survey.scale_down)[2:]


def _chart(surveys: list[Survey]) -> Section:
    """The bar is the median, its whisker goes from the shortest to the longest time."""
    section = Section(
        "fleet", "The fleet", "", {"time to fill a slot": "s"}, chart="time to fill a slot"
    )
    for each in surveys:
        after = {"a stop": each.stop, "a deploy": each.deploy and each.deploy.fill_after}
        for what, times in after.items():
            if times:
                name = f"{each.members:,} members, after {what}"
                values = {"time to fill a slot": [times.best, times.p50, times.worst]}
                section.values[name] = values
    return section
