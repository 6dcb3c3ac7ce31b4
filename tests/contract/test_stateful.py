"""Several relays, time passing, crashes and late settles in any order, against a simple model.

The model knows which relay holds which row and when the row is due, in whole steps of model time;
hypothesis searches for an order of events in which the store disagrees.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from celery_outbox_steps.messages import Dead, Deferred, Published, Retry
from celery_outbox_steps.store import ORPHANED, DeadLetters

# Far more than a test takes, so that real time never decides.
STEP = 1000.0
LEASE = 1.5 * STEP
DELAY = 0.5 * STEP
RELAYS = st.sampled_from(["a", "b", "c"])
SIZES = st.sampled_from([10, 100, 1000])
BUDGETS = st.sampled_from([None, 5, 120, 1100])


@dataclass
class Row:
    due: float
    size: int = 6
    retries: int = 0
    attempted: bool = False
    holder: str | None = None
    until: float = 0.0
    published: bool = False

    def claimable(self, now: float, relay: str, adopt: bool, orphans: bool) -> bool:
        expired = self.until < now
        free = {None: True, ORPHANED: True, relay: adopt or expired}
        return not self.published and self.due <= now and free.get(self.holder, orphans and expired)

    def settleable(self, relay: str, kind: str) -> bool:
        forgotten = kind == "P" and self.holder in (None, ORPHANED) and not self.published
        return self.holder == relay or forgotten


class ConcurrentRelays(RuleBasedStateMachine):
    """Relays `a`, `b` and `c` on one database. Each rule changes the store and the model alike."""

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

    @rule(count=st.integers(1, 4), later=st.booleans(), size=SIZES)
    def enqueue(self, count, later, size):
        delay = DELAY if later else 0.0
        for row in self.backend.add(count, due_in=delay, args="x" * (size - 4)):
            self.rows[row] = Row(self.now + delay, size)

    @rule(steps=st.integers(1, 3))
    def time_passes(self, steps):
        self.backend.pass_time(steps * STEP)
        self.now += steps * STEP

    @rule(
        relay=RELAYS,
        limit=st.integers(1, 5),
        adopt=st.booleans(),
        orphans=st.booleans(),
        budget=BUDGETS,
    )
    def crash_and_claim(self, relay, limit, adopt, orphans, budget):
        """A new process under an old name: it has lost its batch and its watermark."""
        self.stores.pop(relay, None)
        wanted = self._fitting(self._claimable(relay, adopt, orphans)[:limit], budget)
        store = self.store(relay)
        messages = store.claim(limit, LEASE, relay, max_bytes=budget, adopt=adopt, orphans=orphans)
        assert [message.id for message in messages] == wanted
        for message in messages:
            row = self.rows[message.id]
            self._agrees(message, row, relay, budget)
            row.holder, row.until = relay, self.now + LEASE
        self.claimed[relay] = messages

    @rule(relay=RELAYS, position=st.integers(0, 4))
    def begin(self, relay, position):
        for message in self.claimed[relay][position : position + 1]:
            begun = self.store(relay).begin_attempt(message, relay)
            held = self.held(relay, [message])
            assert (begun is not None) is bool(held)
            for row in held:
                assert len(begun.args) == row.size - 4
                row.retries, row.attempted = message.retries + 1, True

    @rule(relay=RELAYS, kinds=st.lists(st.sampled_from("PRDX"), min_size=5, max_size=5))
    def settle(self, relay, kinds):
        pairs = list(zip(self.claimed[relay], kinds, strict=False))
        within = [pair for pair in pairs if self._settleable(relay, *pair)]
        fenced = self.store(relay).settle([_outcome(*pair) for pair in pairs], relay)
        assert fenced == len(pairs) - len(within)
        for message, kind in within:
            self._settled(message, kind)

    @rule(relay=RELAYS)
    def renew(self, relay):
        ids = [message.id for message in self.claimed[relay]]
        held = {
            row_id for row_id in ids if row_id in self.rows and self.rows[row_id].holder == relay
        }
        assert set(self.store(relay).renew(ids, LEASE, relay)) == held
        for row_id in held:
            self.rows[row_id].until = self.now + LEASE

    @rule(relay=RELAYS)
    def release(self, relay):
        messages = self.claimed[relay]
        held = self.held(relay, messages)
        assert self.store(relay).release([m.id for m in messages], relay) == len(held)
        for row in held:
            row.holder = None

    @rule(limit=st.integers(1, 3))
    def replay(self, limit):
        known = set(self.rows)
        assert self.store("a").replay(DeadLetters(), limit) == min(limit, self.dead)
        for row in self.backend.rows():
            if row["id"] not in known:
                self.rows[row["id"]] = Row(self.now, len(row["args"]) + 4)
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

    def _fitting(self, claimable, budget):
        """What a claim takes, by the model: in due order, what fits together, at least one."""
        taken, total = [], 0
        for row_id in claimable:
            total += self.rows[row_id].size
            if taken and budget is not None and total > budget:
                break
            taken.append(row_id)
        return taken

    def _claimable(self, *claim):
        """By due time. Within a step of model time only the store knows what came first."""
        due = {row["id"]: row["due_at"] for row in self.backend.rows()}
        claimable = [n for n, row in self.rows.items() if row.claimable(self.now, *claim)]
        return sorted(claimable, key=lambda n: (self.rows[n].due, due[n], n))

    def _agrees(self, message, row, relay, budget):
        oversized = budget is not None and row.size > budget
        assert (message.retries, message.attempted) == (row.retries, row.attempted)
        assert message.orphaned is (row.holder not in (None, relay))
        assert message.oversized is oversized
        assert len(message.args) == (0 if oversized else row.size - 4)

    def _settleable(self, relay, message, kind):
        row = self.rows.get(message.id)
        return row is not None and row.settleable(relay, kind)

    def _settled(self, message, kind):
        row_id = message.id
        row = self.rows[row_id]
        row.holder = ORPHANED if kind == "D" and message.orphaned else None
        row.retries = message.retries + (kind == "R")
        if kind == "X":
            self.dead += 1
        if kind == "X" or (kind == "P" and self.retention is None):
            del self.rows[row_id]
        elif kind == "P":
            row.published = True
        else:
            row.attempted = True
            row.due = self.now + DELAY


def _outcome(message, kind):
    return {
        "P": Published(message),
        "R": Retry(message, "e", DELAY),
        "D": Deferred(message, "e", DELAY),
        "X": Dead(message, "e", message.retries + 1),
    }[kind]


@pytest.mark.parametrize("retention", [None, 1e9])
def test_no_order_of_events_breaks_the_contract(backend, retention):
    machine = type("Machine", (ConcurrentRelays,), {"backend": backend, "retention": retention})
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
