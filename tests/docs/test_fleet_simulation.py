"""What the docs promise about standing by, checked on a small run of benchmarks/fleet."""

from __future__ import annotations

import random as global_random
from random import Random
from typing import TYPE_CHECKING

import pytest

from benchmarks.fleet import report
from benchmarks.fleet.policies import EverySecond, FirstGap, LastTurn, Turns
from benchmarks.fleet.scenarios import Effort, calm, deploy, scale_down, start, survey
from celery_outbox_steps.fleet import MEMBERSHIP, STANDING_BY, Member
from celery_outbox_steps.places import Entry
from celery_outbox_steps.testing.memory_fleet import MemoryFleet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZES = [3, 10, 100, 1000]
LOOKS_PER_SECOND = 1.2
FILLED_WITHIN = 2.0


@pytest.fixture(autouse=True)
def _same_chance_afterwards() -> Iterator[None]:
    """The simulation seeds the generator that the rule uses."""
    state = global_random.getstate()
    yield
    global_random.setstate(state)


@pytest.mark.parametrize("members", SIZES)
def test_the_whole_fleet_looks_once_per_second_and_fills_a_slot_within_two(members: int) -> None:
    looks, filled = calm(FirstGap(), members, 20)
    assert looks.mean <= LOOKS_PER_SECOND
    assert filled.worst <= FILLED_WITHIN


@pytest.mark.parametrize("members", SIZES)
def test_the_slot_of_a_dead_relay_is_filled_soon_after_its_membership(members: int) -> None:
    _, filled = calm(FirstGap(), members, 20, dies=True)
    assert filled.worst <= MEMBERSHIP + FILLED_WITHIN


def test_the_simulated_rule_is_the_one_in_use() -> None:
    """The simulation looks for the gap in its own way, because it is fast."""
    random = Random(1)
    for _ in range(200):
        clock = [0.0]
        turns, store = Turns(), MemoryFleet(lambda clock=clock: clock[0])
        for member in range(20):
            clock[0] += random.choice([0.0, 0.07])
            turn = random.uniform(0.5, 15)
            turns.put(member, clock[0] + turn, clock[0])
            row = Member(str(member), "celery@host", "1", STANDING_BY)
            store.add(row, Entry(STANDING_BY, None, turn, turn + MEMBERSHIP))
            store.write(row, Entry(STANDING_BY, None, turn, turn + MEMBERSHIP))
        for member in random.sample(range(20), random.randrange(8)):
            turns.remove(member)
            store.check_out(str(member))
        for member in range(21):
            seen, expected = turns.others(member, clock[0]), store.turns(str(member))
            assert (pytest.approx(seen.first_gap), seen.crowd) == expected


def test_after_everybody_started_at_once_the_looks_come_apart() -> None:
    observed = start(FirstGap(), 500)
    assert observed.both_slots <= 1
    assert observed.looks_later.mean <= LOOKS_PER_SECOND


def test_a_rolling_deploy_leaves_no_hole() -> None:
    observed = deploy(FirstGap(), 1000, 2)
    assert observed.fills.worst <= FILLED_WITHIN
    assert observed.fill_after.worst <= FILLED_WITHIN
    assert observed.looks_after.mean <= LOOKS_PER_SECOND


def test_a_turn_after_all_others_would_leave_one() -> None:
    assert deploy(LastTurn(), 1000, 1).fill_after.best > MEMBERSHIP


def test_after_a_scale_down_a_message_fills_the_slots() -> None:
    assert scale_down(FirstGap(), 500, 3, tells=True).all_slots.worst <= FILLED_WITHIN
    assert scale_down(FirstGap(), 500, 3).all_slots.worst > FILLED_WITHIN


def test_the_report_is_written_and_repeats_itself(tmp_path: Path) -> None:
    pages = []
    for name in ("first", "second"):
        ours = survey(FirstGap(), 10, Effort(stops=3, runs=2))
        other = survey(EverySecond(), 10, Effort(stops=3, whole=False))
        report.write(tmp_path / name, [ours], {EverySecond.name: other})
        pages.append((tmp_path / name / "fleet.md").read_text())
    assert pages[0] == pages[1]
    assert "<svg" in (tmp_path / "first" / "fleet.svg").read_text()
