"""Several relays, time passing, crashes and late settles in any order, against a simple model.

The model says who holds what and when it is due, in whole steps of model time; hypothesis looks
for an order of events in which the store disagrees.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from celery_outbox_steps.messages import Dead, Deferred, Published, Retry
from celery_outbox_steps.store import DeadLetters

# Far more than a test takes, so that real time never decides.
STEP = 1000.0
LEASE = 1.5 * STEP
DELAY = 0.5 * STEP
RELAYS = st.sampled_from(["a", "b", "c"])


@dataclass
class Row:
    due: float
    retries: int = 0
    holder: str | None = None
    until: float = 0.0
    published: bool = False

    def claimable(self, now: float) -> bool:
        free = self.holder is None or self.until < now
        return not self.published and self.due <= now and free


class Relays(RuleBasedStateMachine):
    backend = None
    retention: float | None = None

    def __init__(self) -> None:
        super().__init__()
        self.backend.clear()
        self.now = 0.0
        self.rows: dict[int, Row] = {}
        self.dead = 0
        self.claimed = {"a": [], "b": [], "c": []}
        self.stores = {}

    def store(self, relay):
        if relay not in self.stores:
            self.stores[relay] = self.backend.store(retention=self.retention)
        return self.stores[relay]

    def held(self, relay, messages):
        rows = [self.rows.get(message.id) for message in messages]
        return [row for row in rows if row is not None and row.holder == relay]

    @rule(count=st.integers(1, 4), later=st.booleans())
    def enqueue(self, count, later):
        for row in self.backend.add(count, due_in=DELAY if later else 0.0):
            self.rows[row] = Row(self.now + (DELAY if later else 0.0))

    @rule(steps=st.integers(1, 3))
    def time_passes(self, steps):
        self.backend.pass_time(steps * STEP)
        self.now += steps * STEP

    @rule(relay=RELAYS, limit=st.integers(1, 5))
    def crash_and_claim(self, relay, limit):
        """A new process under an old name: it forgot its batch, and where it had been looking."""
        self.stores.pop(relay, None)
        claimable = sorted(row.due for row in self.rows.values() if row.claimable(self.now))
        messages = self.store(relay).claim(limit, LEASE, relay)
        rows = [self.rows[message.id] for message in messages]
        assert all(row.claimable(self.now) for row in rows)
        assert [row.due for row in rows] == claimable[:limit]
        assert [m.retries for m in messages] == [row.retries for row in rows]
        for row in rows:
            row.holder, row.until = relay, self.now + LEASE
        self.claimed[relay] = messages

    @rule(relay=RELAYS, kinds=st.lists(st.sampled_from("PRDX"), min_size=5, max_size=5))
    def settle(self, relay, kinds):
        messages = self.claimed[relay]
        pairs = list(zip(messages, kinds, strict=False))
        fenced = self.store(relay).settle([_outcome(*pair) for pair in pairs], relay)
        assert fenced == len(messages) - len(self.held(relay, messages))
        for message, kind in pairs:
            if self.held(relay, [message]):
                self._settled(message.id, kind)

    @rule(relay=RELAYS)
    def release(self, relay):
        messages = self.claimed[relay]
        held = self.held(relay, messages)
        assert self.store(relay).release([m.id for m in messages], relay) == len(held)
        for row in held:
            row.holder = None

    @rule(relay=RELAYS)
    def renew(self, relay):
        messages = self.claimed[relay]
        held = self.held(relay, messages)
        assert self.store(relay).renew([m.id for m in messages], LEASE, relay) == len(held)
        for row in held:
            row.until = self.now + LEASE

    @rule(limit=st.integers(1, 3))
    def replay(self, limit):
        known = set(self.rows)
        assert self.store("a").replay(DeadLetters(), limit) == min(limit, self.dead)
        for row in self.backend.rows():
            if row["id"] not in known:
                self.rows[row["id"]] = Row(self.now)
                self.dead -= 1

    @invariant()
    def the_store_agrees(self):
        found = {
            row["id"]: (row["retries"], row["claimed_by"], row["due_at"] is None)
            for row in self.backend.rows()
        }
        assert found == {
            row_id: (row.retries, row.holder, row.published) for row_id, row in self.rows.items()
        }
        assert len(self.backend.dead_letters()) == self.dead

    def teardown(self):
        self.backend.clear()

    def _settled(self, row_id, kind):
        row = self.rows[row_id]
        row.holder = None
        if kind == "X":
            self.dead += 1
        if kind == "X" or (kind == "P" and self.retention is None):
            del self.rows[row_id]
        elif kind == "P":
            row.published = True
        else:
            row.retries += kind == "R"
            row.due = self.now + DELAY


def _outcome(message, kind):
    return {
        "P": Published(message),
        "R": Retry(message, "e", DELAY),
        "D": Deferred(message, "e", DELAY),
        "X": Dead(message, "e"),
    }[kind]


@pytest.mark.parametrize("retention", [None, 1e9])
def test_no_order_of_events_breaks_the_contract(backend, retention):
    machine = type("Machine", (Relays,), {"backend": backend, "retention": retention})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=100 if backend.vendor == "memory" else 12,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
