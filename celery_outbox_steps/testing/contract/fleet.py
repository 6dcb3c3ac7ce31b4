"""The fleet: members check in, hold slots, take turns and check out; the outbox is paused.

Part of `StoreContract`: `Store.check_in`, `check_out` and `fleet`, `pause` and `resume`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest

from celery_outbox_steps.fleet import (
    COOLING_DOWN,
    LONGEST_SILENCE,
    MEMBERSHIP,
    REFRESH,
    RELAYING,
    REMEMBERED,
    SILENCE,
    STANDING_BY,
    STOPPED,
    TURN,
    UNABLE_SECONDS,
    WAITING_FOR_BROKER,
    Member,
    Place,
    SeenMember,
)
from celery_outbox_steps.testing.contract.backend import only

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_outbox_steps.store import Store
    from celery_outbox_steps.testing.contract.backend import Backend

LATE = 1.3 * TURN
"""No turn is longer: it has a jitter, and time passes between two of them."""


class FleetContract:
    """A few members hold the slots and work; the others take turns to look for a free one."""

    def test_slots_are_taken_from_the_lowest_and_no_more_than_allowed(
        self, backend: Backend
    ) -> None:
        store = backend.store()
        at_work = [look(store, name).at_work for name in "abc"]
        assert at_work == [True, True, False]
        assert slots(store) == {"a": 0, "b": 1, "c": None}

    def test_a_slot_holder_comes_again_soon_and_keeps_its_slot(self, backend: Backend) -> None:
        store = backend.store()
        for name in "ab":
            look(store, name, relays=1)
        for _ in range(3):
            backend.pass_time(REFRESH)
            assert look(store, "a", relays=1) == Place(True, REFRESH, standbys=1)
            look(store, "b", relays=1)

    def test_everybody_works_if_there_is_no_limit(self, backend: Backend) -> None:
        store = backend.store()
        assert {look(store, name, relays=None) for name in "abc"} == {Place(True, REFRESH)}
        assert slots(store) == {"a": None, "b": None, "c": None}

    def test_members_without_a_slot_take_turns(self, backend: Backend) -> None:
        store, now, looks = backend.store(), 0.0, 40
        look(store, "holder", relays=1)
        due = {name: look(store, name, relays=1).check_in_after for name in "abcde"}
        for _ in range(looks):
            name = min(due, key=due.__getitem__)
            backend.pass_time(max(0.0, due[name] - now))
            now = max(now, due[name])
            due[name] = now + look(store, name, relays=1).check_in_after
            look(store, "holder", relays=1)
        assert 0.6 * looks * TURN < now < 1.3 * looks * TURN

    def test_members_that_come_together_spread(self, backend: Backend) -> None:
        store = backend.store()
        look(store, "holder", relays=1)
        turns = [look(store, f"standby {number}", relays=1) for number in range(20)]
        assert len({round(turn.check_in_after / TURN) for turn in turns}) > 8

    def test_a_member_takes_the_first_gap_between_the_turns_of_the_others(
        self, backend: Backend
    ) -> None:
        store = backend.store()
        turns = {}
        for number in range(16):
            name = f"standby {number}"
            turns[name] = number * 0.6 * TURN + look(store, name, relays=0).check_in_after
            backend.pass_time(0.6 * TURN)  # faster than they come again, but not together
        for name in sorted(turns, key=turns.__getitem__)[:-1]:
            store.check_out(name)  # the last turn is far ahead
        assert look(store, "new", relays=0).check_in_after < LATE

    def test_a_member_that_stops_learns_whom_to_tell(self, backend: Backend) -> None:
        store = backend.store()
        for name in ("holder", "first", "second", "third", "fourth"):
            look(store, name, relays=1)
            backend.pass_time(1.0)
        look(store, "cooling down", relays=1, wants_slot=False, state=COOLING_DOWN)
        told = store.check_out("holder")
        assert told == ["celery@fourth", "celery@third", "celery@second"]

    def test_the_slot_of_a_member_that_stops_is_free_at_once(self, backend: Backend) -> None:
        store = backend.store()
        look(store, "a", relays=1)
        look(store, "b", relays=1)
        store.check_out("a")
        assert look(store, "b", relays=1).at_work
        assert slots(store) == {"a": None, "b": 0}

    def test_the_slot_of_a_dead_member_is_free_when_its_membership_has_run_out(
        self, backend: Backend
    ) -> None:
        store = backend.store()
        look(store, "dead", relays=1)
        for passed in (4.0, 8.0, 12.0):  # never silent for long
            backend.pass_time(4.0)
            assert not look(store, "standby", relays=1).at_work, passed
        backend.pass_time(MEMBERSHIP - 12.0 + 0.1)
        assert look(store, "standby", relays=1).at_work
        assert not look(store, "dead", relays=1).at_work

    def test_a_late_member_keeps_a_slot_that_nobody_took(self, backend: Backend) -> None:
        store = backend.store()
        look(store, "late", relays=1)
        backend.pass_time(LONGEST_SILENCE + 1)
        assert look(store, "late", relays=1).at_work
        assert not look(store, "other", relays=1).at_work

    def test_a_standby_is_alive_until_its_turn_is_long_over(self, backend: Backend) -> None:
        store = backend.store()
        look(store, "holder", relays=1)
        after = look(store, "standby", relays=1).check_in_after
        for _ in range(5):
            backend.pass_time((after + MEMBERSHIP - 1) / 5)
            look(store, "holder", relays=1)
        assert seen(store)["standby"].alive
        backend.pass_time(1.1)
        assert not seen(store)["standby"].alive
        assert look(store, "holder", relays=1).standbys == 0

    def test_a_member_that_wants_no_slot_gives_its_own_away(self, backend: Backend) -> None:
        store = backend.store()
        look(store, "a", relays=1)
        place = look(store, "a", relays=1, wants_slot=False, state=COOLING_DOWN)
        assert (place.at_work, 0 < place.check_in_after < LATE) == (False, True)
        assert look(store, "b", relays=1).at_work
        assert not look(store, "a", relays=1).at_work

    def test_a_member_that_wants_no_slot_says_why_and_is_no_standby(self, backend: Backend) -> None:
        store = backend.store()
        look(store, "a", relays=1, wants_slot=False, state=COOLING_DOWN)
        assert seen(store)["a"].member.state == COOLING_DOWN
        assert look(store, "b", relays=1).standbys == 0

    def test_a_member_whose_broker_is_away_is_no_standby(self, backend: Backend) -> None:
        """One that has just started is: it takes a moment to connect."""
        store = backend.store()
        look(store, "a", relays=1)
        look(store, "b", relays=1, state=WAITING_FOR_BROKER)
        assert seen(store)["b"].member.state == STANDING_BY
        look(store, "b", relays=1, state=WAITING_FOR_BROKER, counters={UNABLE_SECONDS: 3})
        assert seen(store)["b"].member.state == WAITING_FOR_BROKER
        assert look(store, "a", relays=1).standbys == 0

    def test_more_slots_are_filled_by_standbys(self, backend: Backend) -> None:
        store = backend.store()
        for name in "abc":
            look(store, name, relays=1)
        assert [look(store, name, relays=2).at_work for name in "cba"] == [True, False, True]

    def test_fewer_slots_are_left_by_those_above(self, backend: Backend) -> None:
        store = backend.store()
        for name in "abc":
            look(store, name, relays=3)
        store.check_out("a")
        assert [look(store, name, relays=1).at_work for name in "cb"] == [True, False]
        assert slots(store) == {"a": None, "b": None, "c": 0}

    def test_after_a_silence_the_slots_do_not_move(self, backend: Backend) -> None:
        store = backend.store()
        for name in "abc":
            look(store, name)
        backend.pass_time(LONGEST_SILENCE - 60)  # the database was away
        assert [look(store, name).at_work for name in "cab"] == [False, True, True]

    def test_after_a_silence_a_dead_member_is_replaced_a_membership_later(
        self, backend: Backend
    ) -> None:
        store = backend.store()
        for name in ("dead", "standby"):
            look(store, name, relays=1)
        backend.pass_time(SILENCE + MEMBERSHIP)
        at_work = []
        for _ in range(5):
            at_work.append(look(store, "standby", relays=1).at_work)
            backend.pass_time(MEMBERSHIP / 4 + 0.1)
        assert at_work == [False, False, False, False, True]

    def test_a_silence_revives_neither_the_stopped_nor_those_that_died_before(
        self, backend: Backend
    ) -> None:
        store = backend.store()
        look(store, "dead")
        for _ in range(4):
            backend.pass_time(4.0)
            look(store, "last", wants_slot=False)
        look(store, "stopped")
        store.check_out("stopped")
        backend.pass_time(SILENCE + MEMBERSHIP)
        look(store, "last", wants_slot=False)
        assert {name for name, each in seen(store).items() if each.alive} == {"last"}

    def test_a_new_member_knows_no_silence(self, backend: Backend) -> None:
        store = backend.store()
        look(store, "dead", relays=1)
        backend.pass_time(MEMBERSHIP + 1)  # everybody was killed, and is started again
        assert look(store, "new", relays=1).at_work

    def test_beyond_the_longest_silence_there_were_no_relays(self, backend: Backend) -> None:
        store = backend.store()
        for name in ("gone", "left"):
            look(store, name, relays=1)
        backend.pass_time(LONGEST_SILENCE + 1)
        assert look(store, "left", relays=1).at_work

    def test_a_member_is_shown_with_what_it_tells(self, backend: Backend) -> None:
        store = backend.store()
        told = Member("a", "celery@höst", "1.2.3", RELAYING, 12.5, {"published": 7}, "no\x00 route")
        store.check_in(told, relays=1, wants_slot=True)
        backend.pass_time(4.0)
        shown = only(store.fleet().members)
        assert (shown.member.worker, shown.member.version) == ("celery@höst", "1.2.3")
        assert (shown.member.state, shown.member.rate) == (RELAYING, 12.5)
        assert shown.member.counters == {"published": 7}
        assert (shown.member.last_error or "").endswith(" route")
        assert (shown.slot, shown.alive) == (0, True)
        assert (shown.started_ago, shown.seen_ago) == pytest.approx((4.0, 4.0), abs=1.0)

    def test_a_member_is_shown_with_its_start_its_last_check_in_and_last_words(
        self, backend: Backend
    ) -> None:
        store = backend.store()
        look(store, "a", state="first")
        backend.pass_time(10.0)
        look(store, "a", state="second")
        shown = only(store.fleet().members)
        assert shown.member.state == "second"
        assert (shown.started_ago, shown.seen_ago) == pytest.approx((10.0, 0.0), abs=1.0)

    def test_members_are_shown_by_slot_and_name(self, backend: Backend) -> None:
        store = backend.store()
        for name in "dbca":
            look(store, name)
        store.check_out("a")
        assert [each.member.relay_id for each in store.fleet().members] == ["d", "b", "c", "a"]
        states = [each.member.state for each in store.fleet().members]
        assert states == [RELAYING, RELAYING, STANDING_BY, STOPPED]

    def test_a_member_that_is_gone_is_shown_for_a_while(self, backend: Backend) -> None:
        store = backend.store()
        for name in "ab":
            look(store, name)
        store.check_out("a")
        backend.pass_time(REMEMBERED - 60)
        look(store, "c")
        assert set(seen(store)) == {"a", "b", "c"}
        backend.pass_time(120.0)
        look(store, "c")
        assert set(seen(store)) == {"c"}

    def test_a_member_that_stopped_may_come_again(self, backend: Backend) -> None:
        store = backend.store()
        look(store, "a")
        store.check_out("a")
        assert look(store, "a").at_work
        assert seen(store)["a"].alive

    def test_a_stranger_may_check_out(self, backend: Backend) -> None:
        store = backend.store()
        assert store.check_out("nobody") == []
        assert store.fleet().members == ()

    def test_members_that_come_at_the_same_time_share_no_slot(self, backend: Backend) -> None:
        count, relays = 8, 3
        barrier = Barrier(count)

        def come(number: int) -> list[bool]:
            store = backend.store()
            answers = []
            for _ in range(3):
                barrier.wait(30)
                answers.append(look(store, f"member {number}", relays=relays).at_work)
                barrier.wait(30)
                if number == 0:
                    backend.pass_time(LONGEST_SILENCE + 1)  # and now all are dead
            store.close()
            return answers

        with ThreadPoolExecutor(count) as pool:
            rounds = zip(*pool.map(come, range(count)), strict=True)
        assert all(1 <= sum(answers) <= relays for answers in rounds)
        held = [slot for slot in slots(backend.store()).values() if slot is not None]
        assert len(held) == len(set(held)) <= relays

    def test_a_pause_is_told_at_each_check_in_until_it_ends(self, backend: Backend) -> None:
        store, other = backend.store(), backend.store()
        assert look(store, "a").pause is None
        other.pause("the mail server moves", "ann")
        backend.pass_time(60.0)
        for pause in (look(store, "a", relays=1).pause, look(store, "b", relays=1).pause):
            assert pause is not None
            assert (pause.reason, pause.paused_by) == ("the mail server moves", "ann")
            assert pause.seconds == pytest.approx(60.0, abs=5.0)
        assert other.resume()
        assert look(store, "a").pause is None
        assert not other.resume()

    def test_a_second_pause_changes_the_reason_and_not_the_time(self, backend: Backend) -> None:
        store = backend.store()
        store.pause("first", "ann")
        backend.pass_time(60.0)
        store.pause("second", "bob")
        pause = store.fleet().pause
        assert pause is not None
        assert (pause.reason, pause.paused_by) == ("second", "bob")
        assert pause.seconds == pytest.approx(60.0, abs=5.0)
        assert store.resume()
        assert store.fleet().pause is None


def look(
    store: Store,
    name: str,
    *,
    relays: int | None = 2,
    wants_slot: bool = True,
    state: str = RELAYING,
    **told: Any,
) -> Place:
    """One check-in."""
    member = Member(name, f"celery@{name}", "1", state, **told)
    return store.check_in(member, relays=relays, wants_slot=wants_slot)


def seen(store: Store) -> dict[str, SeenMember]:
    members: Iterable[SeenMember] = store.fleet().members
    return {each.member.relay_id: each for each in members}


def slots(store: Store) -> dict[str, int | None]:
    return {name: each.slot for name, each in seen(store).items()}
