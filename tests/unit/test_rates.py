"""The arithmetic of release rates, on a simulated relay: how fast, in which order, at what cost."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import pytest

from celery_outbox_steps.rates import Budget, Rate, rate_of, take_turns

TEN = Rate("mail.*", 10.0)
BATCH = 500
TICK = 0.03
"""Seconds from one claim to the next."""


@dataclass
class Simulation:
    """One relay, and the rows of one rate. Due times are those of a clock that starts at 0."""

    rate: Rate = TEN
    now: float = 0.0
    used: float = 0.0
    planned: float = Budget().planned_until
    due: list[tuple[float, int, bool]] = field(default_factory=list)
    """Due time, number, and whether the row had a turn."""
    sent: list[tuple[float, int]] = field(default_factory=list)
    passes: int = 0
    """How often a row was claimed."""
    number: int = 0

    def store(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            heapq.heappush(self.due, (self.now, self.number, False))

    def run(self, seconds: float, *, until_sent: int | None = None) -> None:
        end = self.now + seconds
        while self.now < end and (until_sent is None or len(self.sent) < until_sent):
            self.tick()

    def tick(self) -> None:
        claimed = []
        while self.due and self.due[0][0] <= self.now and len(claimed) < BATCH:
            claimed.append(heapq.heappop(self.due))
        if claimed:
            self.pace(claimed)
        next_due = self.due[0][0] if self.due else self.now
        self.now = max(self.now + TICK, min(next_due, self.now + 1))

    def pace(self, claimed: list[tuple[float, int, bool]]) -> None:
        self.passes += len(claimed)
        in_order = sorted(claimed, key=lambda row: not row[2])
        waited = sum(had_turn for *_, had_turn in claimed)
        budget = Budget(self.used - self.now, self.planned - self.now)
        turns = take_turns(self.rate, budget, len(claimed) - waited, waited)
        self.used, self.planned = (each + self.now for each in turns.budget)
        self.sent += [(self.now, number) for _, number, _ in in_order[: turns.granted]]
        for (_, number, _), delay in zip(in_order[turns.granted :], turns.delays, strict=True):
            heapq.heappush(self.due, (self.now + delay, number, True))

    def sent_since(self, moment: float) -> int:
        return sum(at >= moment for at, _ in self.sent)


def test_the_first_pattern_that_fits_counts() -> None:
    rates = [Rate("mail.bulk", 1.0), TEN, Rate("*", 5.0)]
    assert rate_of(rates, "mail.bulk") == rates[0]
    assert rate_of(rates, "mail.welcome") == TEN
    assert rate_of(rates[:2], "sms.welcome") is None


@pytest.mark.parametrize("per_second", [0.5, 10.0, 600.0])
def test_a_backlog_is_sent_at_the_rate(per_second: float) -> None:
    simulation = Simulation(Rate("*", per_second))
    simulation.store(int(per_second * 200))
    simulation.run(100)
    begin, count = simulation.now, len(simulation.sent)
    simulation.run(60)
    assert len(simulation.sent) - count == pytest.approx(60 * per_second, rel=0.05, abs=1)
    assert begin == pytest.approx(100, abs=1.1)


def test_no_time_has_more_than_the_rate_and_a_burst() -> None:
    simulation = Simulation()
    for _ in range(120):
        simulation.store(25)
        simulation.run(0.5)
    times = [at for at, _ in simulation.sent]
    for begin in range(50):
        window = [at for at in times if begin <= at < begin + 10]
        assert len(window) <= 10 * 10 + 10 + 5


def test_a_large_backlog_costs_little_more_than_its_messages() -> None:
    """A row is claimed once to get its turn, and once more for it."""
    simulation = Simulation()
    simulation.store(50_000)
    simulation.run(600)
    assert simulation.sent_since(5) == pytest.approx(595 * 10, rel=0.05)
    assert simulation.passes <= 50_000 + 2 * len(simulation.sent)


def test_while_a_large_backlog_gets_its_turns_messages_are_sent_at_the_rate() -> None:
    simulation = Simulation()
    simulation.store(200_000)
    simulation.run(10)
    assert len(simulation.sent) >= 50


def test_new_messages_go_behind_those_that_have_turns() -> None:
    simulation = Simulation()
    simulation.store(300)
    simulation.run(10)
    simulation.store(50)
    simulation.run(60)
    order = [number for _, number in simulation.sent]
    assert len(order) == 350
    assert order.index(301) >= 290


def test_if_those_that_had_turns_are_gone_new_messages_do_not_wait_for_long() -> None:
    simulation = Simulation()
    simulation.store(10_000)
    simulation.run(20)
    simulation.due.clear()
    simulation.run(90)
    simulation.store(5)
    began = simulation.now
    simulation.run(30, until_sent=len(simulation.sent) + 5)
    assert simulation.now - began < 2
