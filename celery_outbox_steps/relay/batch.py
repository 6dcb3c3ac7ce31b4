"""A batch: claimed rows on their way from claim to settle, with the outcomes that they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_outbox_steps.messages import Deferred, Outcome, Published

if TYPE_CHECKING:
    from celery_outbox_steps.messages import ClaimedMessage
    from celery_outbox_steps.observe.recorder import Recorders
    from celery_outbox_steps.store import Store


class Batch:
    """Claimed rows that still have to be settled or given back."""

    def __init__(
        self, rows: list[ClaimedMessage], claimed_at: float, lease: float, *, full: bool
    ) -> None:
        self.rows = rows
        self.claimed_at = claimed_at
        self.send_before = claimed_at + lease
        """After this moment the lease may have expired: by then everything is sent and answered."""
        self.full = full
        self.outcomes: list[Outcome] = []
        self.unsent = {row.id: row for row in rows}
        """Rows without an outcome, by id."""
        self.published = 0
        self.suspects: set[int] = set()
        """Ids of rows that were interrupted together."""
        self.outage = ""
        """Why the broker counts as away, if it does."""
        self.duration = 0.0
        self.fenced = 0
        """Rows that another relay had taken over before they could be settled."""
        self._unsettled: list[Outcome] = []

    @property
    def may_kill(self) -> bool:
        """Whether a row may kill the relay. The publish step then uses the Store as well."""
        return any(row.may_kill for row in self.rows)

    def add(self, outcome: Outcome) -> None:
        del self.unsent[outcome.message.id]
        self.outcomes.append(outcome)
        self._unsettled.append(outcome)
        self.published += isinstance(outcome, Published)

    def keep_suspects_apart(self) -> None:
        """Rows that may break a connection or kill a relay are deferred and not given back, which
        would make them look new: they must not share a batch again.
        """
        for row in list(self.unsent.values()):
            if row.orphaned or row.id in self.suspects:
                self.add(Deferred(row, "it was in flight when a batch was interrupted", 0.0))

    def settle(self, store: Store, relay_id: str, recorders: Recorders) -> None:
        """Write the outcomes that the Store does not have yet. Repeatable until it succeeds."""
        if self._unsettled:
            self.fenced += store.settle(self._unsettled, relay_id)
            settled, self._unsettled = self._unsettled, []
            recorders.report_settled(store, settled)

    def shares_rows_with(self, other: Batch) -> bool:
        return not {row.id for row in self.rows}.isdisjoint(row.id for row in other.rows)
