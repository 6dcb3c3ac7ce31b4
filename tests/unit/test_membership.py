"""A relay's place in the fleet: when it checks in, and when it gives its slot to another."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.fleet import (
    MEMBERSHIP,
    REFRESH,
    RELAYING,
    UNABLE_SECONDS,
    WAITING_FOR_BROKER,
)
from celery_outbox_steps.observe.journal import Journal
from celery_outbox_steps.testing import MemoryStore
from celery_outbox_steps.worker.membership import PATIENCE, REST, Ability, Membership

ABLE, UNABLE = Ability(), Ability(is_connected=False)
PAUSED, FAILING = Ability(is_paused=True), Ability(is_failing=True)


class Scene:
    """Relays of one outbox, on one clock."""

    def __init__(self, relays: int | None = 1) -> None:
        self.now = 1000.0
        self.store = MemoryStore(clock=lambda: self.now)
        self.relays = relays
        self.ability: dict[Membership, Ability] = {}
        self.names: dict[Membership, str] = {}
        self.said: list[str] = []

    def member(self, name: str, **options: Any) -> Membership:
        journal = Journal(self.store.name, name)
        membership = Membership(
            self.store, self.relays, journal, f"celery@{name}", self.said.append, **options
        )
        self.names[membership], self.ability[membership] = name, ABLE
        self.step(membership)
        return membership

    def step(self, membership: Membership) -> None:
        """What the relay's thread does: check in if it is due."""
        ability = self.ability[membership]
        if not membership.due_in(ability, self.now):
            state = RELAYING if ability.is_connected else WAITING_FOR_BROKER
            membership.check_in(state, ability, self.now)

    def run(self, seconds: float, *, without: tuple[Membership, ...] = ()) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.25
            for membership in self.names:
                if membership not in without:
                    self.step(membership)

    def at_work(self) -> list[str]:
        return [name for membership, name in self.names.items() if membership.place.at_work]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_first_takes_the_slot_and_the_others_stand_by(scene: Scene) -> None:
    for name in "abc":
        scene.member(name)
    scene.run(60)
    assert scene.at_work() == ["a"]
    assert scene.said == ["relaying memory", "standing by for memory", "standing by for memory"]


def test_without_a_limit_everybody_works() -> None:
    scene = Scene(relays=None)
    for name in "abc":
        scene.member(name)
    scene.run(30)
    assert scene.at_work() == ["a", "b", "c"]


def test_one_at_work_refreshes_its_membership(scene: Scene) -> None:
    a = scene.member("a")
    assert a.due_in(ABLE, scene.now) == pytest.approx(REFRESH)


def test_the_slot_of_a_dead_one_is_filled(scene: Scene) -> None:
    a, b = scene.member("a"), scene.member("b")
    scene.run(MEMBERSHIP - 1, without=(a,))
    assert not b.place.at_work
    scene.run(3, without=(a,))
    assert b.place.at_work


def test_one_that_wakes_up_after_its_membership_stands_by(scene: Scene) -> None:
    a, _b = scene.member("a"), scene.member("b")
    scene.run(MEMBERSHIP + 3, without=(a,))
    scene.run(5)
    assert scene.at_work() == ["b"]
    assert not a.place.at_work


def test_one_that_cannot_work_for_long_gives_its_slot_up(scene: Scene) -> None:
    a, b = scene.member("a"), scene.member("b")
    scene.run(5)
    scene.ability[a] = UNABLE
    scene.run(PATIENCE - 2)
    assert scene.at_work() == ["a"]
    scene.run(8)
    assert scene.at_work() == ["b"]
    assert b.place.at_work


def test_one_that_cannot_work_keeps_its_slot_if_there_is_nobody_else(scene: Scene) -> None:
    a = scene.member("a")
    scene.ability[a] = UNABLE
    scene.run(PATIENCE * 3)
    assert scene.at_work() == ["a"]
    (seen,) = scene.store.fleet().members
    assert seen.member.counters[UNABLE_SECONDS] >= PATIENCE * 2


def test_those_who_cannot_work_do_not_take_a_slot(scene: Scene) -> None:
    a, b = scene.member("a"), scene.member("b")
    scene.ability.update({a: UNABLE, b: UNABLE})
    scene.run(PATIENCE * 4)
    assert scene.at_work() in ([], ["a"])


def test_who_gave_its_slot_up_wants_it_back_at_once(scene: Scene) -> None:
    a, b = scene.member("a"), scene.member("b")
    scene.run(5)
    scene.ability[a] = UNABLE
    scene.run(PATIENCE * 2, without=(b,))
    assert not a.place.at_work
    scene.ability[a] = ABLE
    scene.run(0.25, without=(b,))
    assert a.place.at_work


def test_one_that_fails_gives_its_slot_up_and_rests(scene: Scene) -> None:
    a, b = scene.member("a"), scene.member("b")
    scene.run(5)
    scene.ability[a] = FAILING
    scene.run(PATIENCE + REFRESH + 2)
    assert scene.at_work() == ["b"]
    scene.store.check_out("b")
    scene.run(REST + 2, without=(b,))
    assert scene.at_work() == ["a", "b"], "it tries again: perhaps the broker is back"


def test_one_that_was_paused_alone_gives_its_slot_up_at_once(scene: Scene) -> None:
    a, _ = scene.member("a"), scene.member("b")
    scene.run(5)
    scene.ability[a] = PAUSED
    scene.run(REFRESH + 2)
    assert scene.at_work() == ["b"]


def test_a_paused_outbox_moves_no_slot(scene: Scene) -> None:
    a, b = scene.member("a"), scene.member("b")
    scene.store.pause("maintenance", "ops")
    scene.run(60)
    assert scene.at_work() == ["a"]
    assert a.place.pause is not None
    assert a.place.pause.reason == "maintenance"
    scene.store.resume()
    scene.run(10)
    assert (a.place.pause, b.place.pause) == (None, None)


def test_a_standby_whose_database_is_away_does_not_come_more_often(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcdefghij":
        scene.member(name)
    scene.run(20)
    last = next(each for each, name in scene.names.items() if name == "j")
    looks = 0

    def refuse(*_: Any, **__: Any) -> Any:
        nonlocal looks
        looks += 1
        raise StoreError("the database is away")

    monkeypatch.setattr(scene.store, "check_in", refuse)
    for _ in range(240):
        scene.now += 0.25
        with contextlib.suppress(StoreError):
            scene.step(last)
    assert 1 <= looks <= 60 / 9 + 2


def test_if_the_broker_is_away_for_all_the_slots_do_not_move(scene: Scene) -> None:
    members = [scene.member(name) for name in "abc"]
    scene.run(5)
    scene.ability.update(dict.fromkeys(members, UNABLE))
    for _ in range(20):
        scene.run(PATIENCE / 4)
        assert scene.at_work() == ["a"]


def test_with_destinations_there_is_always_one_at_work(scene: Scene) -> None:
    """Destinations have brokers of their own: a relay whose own broker is away works for them."""
    a, b, c = (scene.member(name, destinations=dict) for name in "abc")
    scene.run(5)
    scene.ability.update(dict.fromkeys((a, b, c), UNABLE))
    scene.run(PATIENCE * 3)
    assert scene.at_work() == ["a"]
    scene.store.check_out("a")
    scene.run(5, without=(a,))
    assert len({*scene.at_work()} - {"a"}) == 1


def test_with_destinations_one_that_can_reach_its_broker_gets_the_slot(scene: Scene) -> None:
    a, b = (scene.member(name, destinations=dict) for name in "ab")
    scene.run(5)
    scene.ability[a] = UNABLE
    scene.run(PATIENCE + REFRESH + 5)
    for _ in range(10):
        assert scene.at_work() == ["b"]
        scene.run(REST / 3)
    assert b.place.at_work
