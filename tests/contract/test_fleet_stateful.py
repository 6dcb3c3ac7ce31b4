"""Members that come, stop, die and lose their rows in any order, against a simple model.

Model time goes in steps that are never close to one of the fleet's times, and the real time that a
step took is taken back, so that it never decides. Turns are checked for their bounds only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from celery_outbox_steps.fleet import (
    LONGEST_SILENCE,
    MEMBERSHIP,
    REFRESH,
    RELAYING,
    REMEMBERED,
    SILENCE,
    STOPPED,
    TURN,
    Member,
)

NAMES = st.sampled_from("abcde")
SECONDS = st.sampled_from([4.5, 45.0, 310.0])


@dataclass
class Row:
    seen: float
    slot: int | None = None
    ends: float = 0.0
    """Of the membership; for those without a slot it decides nothing here."""
    stopped: bool = False


class Fleet(RuleBasedStateMachine):
    """Five members on two stores. Each rule changes the table and the model alike."""

    backend = None

    def __init__(self) -> None:
        super().__init__()
        self.backend.clear()
        self.stores = [self.backend.store(), self.backend.store()]
        self.now = 0.0
        self.at = time.monotonic()
        self.members: dict[str, Row] = {}
        self.paused: tuple[str, str] | None = None

    def store(self, name):
        return self.stores[ord(name) % 2]

    @rule(seconds=SECONDS)
    def time_passes(self, seconds):
        began = time.monotonic()
        self.backend.pass_time(seconds - (began - self.at))
        self.at = began
        self.now += seconds

    @rule(name=NAMES, relays=st.sampled_from([1, 2, 3, None]), wants=st.booleans())
    def check_in(self, name, relays, wants):
        member = Member(name, f"celery@{name}", "1", RELAYING)
        place = self.store(name).check_in(member, relays=relays, wants_slot=wants)
        assert place.at_work is self._checked_in(name, relays, wants)
        others = len(self.members) - 1
        longest = REFRESH if place.at_work else 3 * TURN * (others + 1)
        assert 0 < place.check_in_after <= longest
        told = place.pause and (place.pause.reason, place.pause.paused_by)
        assert told == self.paused

    @rule(name=NAMES)
    def check_out(self, name):
        told = self.store(name).check_out(name)
        assert f"celery@{name}" not in told
        if name in self.members:
            self.members[name] = Row(self.now, stopped=True, ends=self.now)

    @rule(name=NAMES)
    def lose_its_row(self, name):
        self.backend.delete_member(name)
        self.members.pop(name, None)

    @rule(reason=st.sampled_from(["a reason", "another"]), name=NAMES)
    def pause(self, reason, name):
        self.store(name).pause(reason, name)
        self.paused = (reason, name)

    @rule(name=NAMES)
    def resume(self, name):
        assert self.store(name).resume() is (self.paused is not None)
        self.paused = None

    @invariant()
    def the_store_agrees(self):
        fleet = self.stores[0].fleet()
        shown = {each.member.relay_id: each for each in fleet.members}
        assert {name: each.slot for name, each in shown.items()} == {
            name: row.slot for name, row in self.members.items()
        }
        for name, row in self.members.items():
            assert (shown[name].member.state == STOPPED) is row.stopped
            if row.slot is not None or row.stopped:
                assert shown[name].alive is (row.ends > self.now)

    def teardown(self):
        self.backend.clear()

    def _checked_in(self, name, relays, wants):
        """What the model says: whether it works."""
        if name in self.members:
            self._end_silence()
        row = self.members.setdefault(name, Row(self.now))
        slot = self._slot(row, relays) if wants and relays else None
        for other in self.members.values():
            if slot is not None and other.slot == slot:
                other.slot = None
        row.seen, row.slot, row.stopped, row.ends = self.now, slot, False, self.now + MEMBERSHIP
        at_work = relays is None or slot is not None
        if at_work:
            oldest = self.now - REMEMBERED
            self.members = {n: each for n, each in self.members.items() if each.ends > oldest}
        return at_work

    def _slot(self, row, relays):
        if row.slot is not None and row.slot < relays:
            return row.slot
        taken = {each.slot for each in self.members.values() if each.ends > self.now}
        return min(set(range(relays)) - taken, default=None)

    def _end_silence(self):
        present = [row for row in self.members.values() if not row.stopped]
        last = max((row.seen for row in present), default=self.now)
        if SILENCE < self.now - last < LONGEST_SILENCE:
            for row in present:
                if row.ends > last:
                    row.ends = max(row.ends, self.now + MEMBERSHIP)


def test_no_order_of_events_gives_a_slot_to_two_members(backend):
    run_state_machine_as_test(
        type("Machine", (Fleet,), {"backend": backend}),
        settings=settings(
            max_examples=200 if backend.vendor == "memory" else 12,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
