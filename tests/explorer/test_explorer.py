"""Every order of events within small budgets: what a fault costs is what the docs say."""

from __future__ import annotations

from collections import Counter

import pytest

from celery_outbox_steps.relay.prefetch import Claims
from celery_outbox_steps.testing.memory_lane import MemoryLane
from tests.explorer.bounds import BOUNDS, Bound, explore
from tests.explorer.search import Choices, plays
from tests.explorer.world import Case, Publisher, Session, World


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_a_fault_costs_no_more_than_promised(bound: Bound) -> None:
    for case in bound.cases:
        assert explore(case).beyond(bound) == []


SLOW = ("kill", "pause")


@pytest.mark.parametrize("keys", ["a", "aab"])
@pytest.mark.parametrize("fault", ["none", "kill", "broker away", "pause", "database crash"])
def test_no_fault_breaks_the_order_of_a_key(fault: str, keys: str) -> None:
    report = explore(Case(fault, relays=2, switches=1 if fault in SLOW else 2, keys=keys))
    promised = Counter({name: report.worst[name] for name in ("overtaken", "lost", "stolen")})
    assert not +promised, report.logs


def test_a_claim_that_lets_a_message_overtake_another_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MemoryLane, "_has_to_wait", lambda *_: False)
    assert explore(Case("none", relays=2, keys="a")).worst["overtaken"] > 0


def test_all_sequences_of_choices_are_played_once() -> None:
    def play(choices: Choices) -> tuple[int, ...]:
        first = choices.choose(2)
        return (first, *(choices.choose(3) for _ in range(first)), choices.choose(1))

    assert list(plays(play)) == [(0, 0), (1, 0, 0), (1, 1, 0), (1, 2, 0)]


def test_the_same_choices_lead_to_the_same_events() -> None:
    case = Case("database crash", relays=2)
    told = next(found for found in _told(case) if len(found) > 8)
    logs = [World(case, Choices(told)).play().log for _ in range(3)]
    assert logs[0] == logs[1] == logs[2]
    assert "-- database crash" in logs[0]


def test_a_relay_that_loses_a_message_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Publisher, "_send", lambda self, message: None)
    assert explore(Case("none")).worst["lost"] > 0


def test_a_settle_without_a_fence_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfenced(self, outcomes, relay_id):
        for outcome in outcomes:
            row = self._rows.rows.get(outcome.message.id)
            if row is not None:
                self._world.outcome.stolen += row.claimed_by != relay_id
                del self._rows.rows[row.id]
        return 0

    monkeypatch.setattr(Session, "_settle", unfenced)
    assert explore(Case("pause", relays=2, switches=1)).worst["stolen"] > 0


def test_a_renewal_without_a_fence_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_renew", lambda self, ids, lease, relay_id: ids)
    (bound,) = (each for each in BOUNDS if str(each) == "pause, 2 relays")
    assert any(explore(case).beyond(bound) for case in bound.cases)


def test_a_relay_that_takes_over_rows_after_an_outage_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Claims, "leave_orphans", lambda self: None)
    assert explore(Case("database away", relays=2, switches=1)).worst["copies"] > 0


def _told(case: Case):
    """What the search tells, play by play."""
    told: list[int] | None = []
    while told is not None:
        yield told
        choices = Choices(told)
        World(case, choices).play()
        told = choices.following()
