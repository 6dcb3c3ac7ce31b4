"""Relays that publish rows with keys, time passing, crashes and replays, in any order of events.

hypothesis searches for one that breaks the order of a key, or leaves a row behind. The relays do as
`celery_outbox_steps.relay` does: what may be sent is decided by the real `relay/order.py`, nothing
is sent after the lease, and the batch that was claimed ahead is given back if it has to wait.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from celery_outbox_steps.messages import Dead, Deferred, Expired, Published, Retry
from celery_outbox_steps.relay.order import Order
from celery_outbox_steps.store import DeadLetters
from celery_outbox_steps.testing.contract.backend import ids_of
from celery_outbox_steps.testing.contract.destinations import LAKE, OTHER, lane_of

# Far more than a test takes, so that real time never decides.
STEP = 1000.0
LEASE = 1.5 * STEP
DELAY = 0.5 * STEP
RELAYS = st.sampled_from(["a", "b", "c"])
KEYS = st.sampled_from(["k", "k", "k", "l", None])
OUTCOMES = st.lists(st.sampled_from("PPPRDXXE"), min_size=6, max_size=6)


@dataclass
class Batch:
    """Claimed rows, until when they may be sent, and what has come of them."""

    rows: list
    until: float
    order: Order = field(init=False)
    outcomes: list = field(default_factory=list)

    def __post_init__(self):
        self.order = Order(self.rows)

    @property
    def unsent(self):
        answered = {outcome.message.id for outcome in self.outcomes}
        return [row for row in self.rows if row.id not in answered]


class RelaysAndKeys(RuleBasedStateMachine):
    """Relays `a`, `b` and `c` for one destination, on one database."""

    backend = None
    retention: float | None = None

    def __init__(self) -> None:
        super().__init__()
        self.backend.clear()
        self.now = 0.0
        self.stored = defaultdict(list)
        self.gone = set()
        self.sent = defaultdict(list)
        self.lanes = {}
        self.batches = {"a": [], "b": [], "c": []}

    def lane(self, relay):
        if relay not in self.lanes:
            self.lanes[relay] = lane_of(self.backend, retention=self.retention)
        return self.lanes[relay]

    @rule(keys=st.lists(KEYS, min_size=1, max_size=5), later=st.booleans())
    def enqueue(self, keys, later):
        for key in keys:
            self.backend.add(destination=OTHER, order_key=key)
            due_in = DELAY if later else 0.0
            self.stored[key] += self.backend.add(destination=LAKE, order_key=key, due_in=due_in)

    @rule(steps=st.integers(1, 3))
    def time_passes(self, steps):
        self.backend.pass_time(steps * STEP)
        self.now += steps * STEP

    @rule(relay=RELAYS)
    def crash(self, relay):
        self.lanes.pop(relay, None)
        self.batches[relay] = []

    @rule(relay=RELAYS, limit=st.integers(1, 6), kinds=OUTCOMES)
    def work(self, relay, limit, kinds):
        """As a relay does that nothing disturbs."""
        self.claim(relay, limit, orphans=True)
        self.publish(relay, kinds)
        self.settle(relay)

    @rule(relay=RELAYS, limit=st.integers(1, 6), orphans=st.booleans())
    def claim(self, relay, limit, orphans):
        """The next batch, or one ahead of it."""
        batches = self.batches[relay]
        if len(batches) == 2:
            return
        in_hand = [row.id for batch in batches for row in batch.rows if row.order_key]
        rows = self.lane(relay).claim(
            limit, LEASE, relay, adopt=not batches, orphans=orphans, in_hand=in_hand
        )
        assert len({row.id for row in rows}) == len(rows) <= limit
        if rows:
            batches.append(Batch(rows, self.now + LEASE))

    @rule(relay=RELAYS)
    def lose_the_answer_of_a_claim(self, relay):
        if not self.batches[relay]:
            self.lane(relay).claim(2, LEASE, relay, adopt=True)

    @rule(relay=RELAYS, kinds=OUTCOMES)
    def publish(self, relay, kinds):
        for batch in self.batches[relay][:1]:
            left = iter(kinds)
            for row in sorted(batch.unsent, key=lambda each: each.id):
                if self.now < batch.until and batch.order.allows(row):
                    self._send(batch, row, next(left))

    @rule(relay=RELAYS)
    def settle(self, relay):
        """And give back what was not sent, and what was claimed ahead if it has to wait."""
        lane = self.lane(relay)
        for batch in self.batches[relay][:1]:
            lane.settle(batch.outcomes, relay)
            ahead = self.batches[relay][1:]
            unsent = ids_of(batch.unsent)
            for each in ahead:
                if unsent or any(map(batch.order.waits, each.rows)):
                    unsent += ids_of(each.rows)
                    ahead = []
            lane.release(unsent, relay)
            self.batches[relay] = ahead

    @precondition(lambda self: self.backend.dead_letters())
    @rule(position=st.integers(0, 3))
    def replay(self, position):
        letters = self.backend.dead_letters()[position : position + 1]
        which = DeadLetters(ids=[letter["id"] for letter in letters])
        assert self.backend.store().replay(which) == len(letters)

    @precondition(lambda self: self.backend.dead_letters())
    @rule()
    def discard(self):
        before = self._alive()
        self.backend.store().purge_dead_letters(DeadLetters(), 1)
        self.gone |= before - self._alive()

    def teardown(self):
        """At rest everything is published that is neither published nor discarded."""
        store = self.backend.store()
        for _ in range(2):
            self.backend.pass_time(2 * STEP)
            store.replay(DeadLetters())
            lane = lane_of(self.backend)
            while rows := lane.claim(10, LEASE, "the last"):
                batch = Batch(rows, float("inf"))
                for row in sorted(rows, key=lambda each: each.id):
                    self._send(batch, row, "P")
                assert lane.settle(batch.outcomes, "the last") == 0
        for key, rows in self.stored.items():
            assert set(rows) - self.gone <= set(self.sent[key])
        assert not [row for row in self.backend.rows(LAKE) if row["due_at"] is not None]
        assert all(row["claimed_by"] is None for row in self.backend.rows(OTHER))
        self.backend.clear()

    def _send(self, batch, row, kind):
        key = row.order_key
        if kind in "PE" and key is not None:
            before = {each for each in self.stored[key] if each < row.id} - self.gone
            assert before <= set(self.sent[key]), f"{row.id} overtakes others of {key}"
        if kind == "P":
            self.sent[key].append(row.id)
        if kind == "E":
            self.gone.add(row.id)
        if kind in "PE":
            batch.order.passed(row)
        batch.outcomes.append(_outcome(row, kind))

    def _alive(self):
        letters = [letter["position"] for letter in self.backend.dead_letters()]
        return {row["id"] for row in self.backend.rows(LAKE)} | set(letters)


def _outcome(row, kind):
    return {
        "P": Published(row),
        "R": Retry(row, "e", DELAY),
        "D": Deferred(row, "e", 0.0),
        "X": Dead(row, "e", row.retries + 1),
        "E": Expired(row),
    }[kind]


@pytest.mark.parametrize("retention", [None, 1e9])
def test_no_order_of_events_breaks_the_order_of_a_key(backend, retention):
    machine = type("Machine", (RelaysAndKeys,), {"backend": backend, "retention": retention})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=150 if backend.vendor == "memory" else 8,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
