"""A batch: claimed rows between claim and settle, and their outcomes so far.

Every row is either unsent or has exactly one outcome. A batch remembers which outcomes the Store
has, so that writing them can be repeated after an error. It decides nothing about a row:
`celery_outbox_steps.relay.publish` does. The next step of the path is `Store.settle`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from celery_outbox_steps.messages import (
    BatchResult,
    Dead,
    Deferred,
    Expired,
    Outcome,
    Published,
    Retry,
)
from celery_outbox_steps.relay.order import order_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from celery_outbox_steps.messages import ClaimedMessage, Message
    from celery_outbox_steps.observe.recorder import Recorders
    from celery_outbox_steps.store import LaneStore


class Batch:
    """Claimed rows that still have to be settled or released."""

    def __init__(
        self, rows: list[ClaimedMessage], claimed_at: float, lease: float, *, full: bool
    ) -> None:
        self.rows = rows
        self.claimed_at = claimed_at
        """When the claim began, and the lease with it, by the relay's clock."""
        self.lease_ends = claimed_at + lease
        """From then on other relays can take the rows over, by the relay's clock."""
        self.full = full
        self.outcomes: list[Outcome] = []
        self.unsent = {row.id: row for row in rows}
        """Rows without an outcome, by id."""
        self.counts: Counter[type[Outcome]] = Counter()
        """The outcomes by kind."""
        self.suspects: set[int] = set()
        """Ids of rows that were interrupted together, one of which may be the cause."""
        self.outage = ""
        """Why the broker counts as unavailable; empty if it does not."""
        self.watchers: list[Callable[[Message], None]] = []
        """Recorders that want to see each message before it is sent."""
        self.duration = 0.0
        self._order = order_of(rows)
        self._fenced = self._lost = self._paced = self._published_before = 0
        self._unsettled: list[Outcome] = []

    @property
    def may_kill(self) -> bool:
        """Whether one of the rows may kill the relay. Publishing such a row uses the Store too."""
        return any(row.may_kill for row in self.rows)

    @property
    def keyed_ids(self) -> list[int]:
        """The rows that others may have to wait for."""
        if self._order is None:
            return []
        return [row.id for row in self.rows if row.order_key is not None]

    @property
    def broker_answered(self) -> bool:
        """Whether the broker is known to be alive: it accepted or refused a message."""
        return bool(self.counts[Published] or self.counts[Retry])

    @property
    def broker_is_alive(self) -> bool:
        """Whether it accepted a message in the last round, or since then."""
        return self.counts[Published] > self._published_before

    def begin_round(self) -> None:
        """What the broker accepted so far says nothing about what comes now."""
        self._published_before = self.counts[Published]

    def must_precede(self, other: Batch) -> bool:
        """Whether the other batch has rows that must not be sent now: rows of this one, or rows
        whose key has a row in this one that is not published."""
        order = self._order
        if order is not None and any(map(order.waits, other.rows)):
            return True
        return not {row.id for row in self.rows}.isdisjoint(row.id for row in other.rows)

    def may_send(self, row: ClaimedMessage) -> bool:
        """Whether the row is unsent, and nothing that has to be published before it is left."""
        return row.id in self.unsent and (self._order is None or self._order.allows(row))

    def rounds(self, rows: Sequence[ClaimedMessage]) -> Iterator[Sequence[ClaimedMessage]]:
        """The rows that may be sent together: one of each key, and then the next of those that
        were published. All of them at once, if none has a key."""
        if self._order is None:
            yield rows
            return
        left = rows
        while ready := [row for row in left if self.may_send(row)]:
            yield ready
            tried = {row.id for row in ready}
            left = [row for row in left if row.id not in tried]

    def give_back(self, rows: Iterable[ClaimedMessage]) -> None:
        """The Store has taken these rows back, until their turns come."""
        for row in rows:
            del self.unsent[row.id]
            self._paced += 1

    def add(self, outcome: Outcome) -> None:
        del self.unsent[outcome.message.id]
        if self._order is not None and isinstance(outcome, (Published, Expired)):
            self._order.passed(outcome.message)
        self.outcomes.append(outcome)
        self._unsettled.append(outcome)
        self.counts[type(outcome)] += 1

    def defer(self, rows: Iterable[ClaimedMessage], reason: str, delay: float) -> None:
        for row in rows:
            self.add(Deferred(row, reason, delay))

    def defer_suspects(self) -> None:
        """Defer the unsent rows that may break a connection or kill a relay.

        If they were released, they would look new and be published together with others again.
        """
        suspects = [row for row in self.unsent.values() if row.orphaned or row.id in self.suspects]
        self.defer(suspects, "the message was in flight when a batch was interrupted", 0.0)

    def renew(self, store: LaneStore, relay_id: str, lease: float, now: float) -> None:
        """Begin the lease again. Unsent rows that another relay has taken over are dropped."""
        ids = [*self.unsent, *(outcome.message.id for outcome in self._unsettled)]
        held = set(store.renew(ids, lease, relay_id))
        self.lease_ends = now + lease
        for lost in self.unsent.keys() - held:
            del self.unsent[lost]
            self._lost += 1

    def write_outcomes(self, store: LaneStore, relay_id: str, recorders: Recorders) -> None:
        """Write the outcomes that the Store does not have yet. May be repeated after an error."""
        if self._unsettled:
            self._fenced += store.settle(self._unsettled, relay_id)
            settled, self._unsettled = self._unsettled, []
            recorders.report_settled(store, settled)

    def result(self) -> BatchResult:
        return BatchResult(
            outcomes=tuple(self.outcomes),
            claimed=len(self.outcomes) + len(self.unsent) + self._lost + self._paced,
            published=self.counts[Published],
            retried=self.counts[Retry],
            dead=self.counts[Dead],
            deferred=self.counts[Deferred],
            expired=self.counts[Expired],
            paced=self._paced,
            released=len(self.unsent),
            fenced=self._fenced + self._lost,
            full=self.full,
            outage=self.outage,
            duration=self.duration,
        )
