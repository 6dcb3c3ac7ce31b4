"""The rows of one lane: claimed, attempted, settled, released, renewed, paced.

A lane is what one relay publishes: the rows for the app's own broker (`base.py`), or those for one
destination (`deliveries.py`). Every write is fenced with the relay's id, see `writes.py`; where a
claim begins is decided by `watermark.py`, and when the next row is due is known to `next_due.py`.
"""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING

from django_integration.store import stats
from django_integration.store.dialect import ClaimRequest, Dialect, LeasedRow
from django_integration.store.next_due import NextDue
from django_integration.store.pacing import Pacing
from django_integration.store.watermark import Start, Watermark
from django_integration.store.writes import Writes

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from celery_outbox_steps.messages import ClaimedMessage, Outcome
    from celery_outbox_steps.rates import Rate
    from django_integration.schema import Lane
    from django_integration.store.session import Session


class LaneStore:
    """What a relay needs from its rows. `keep`: published rows stay for the retention time."""

    def __init__(self, session: Session, dialect: Dialect, lane: Lane, *, keep: bool) -> None:
        self.name = session.alias
        self._session = session
        self._dialect = dialect
        self._lane = lane
        self._watermark = Watermark()
        self._next_due = NextDue()
        self._writes = Writes(session, dialect, lane.table, keep=keep)
        self._pacing = Pacing(session, dialect, self._writes)
        self._claimed_in = 0
        """Which of the session's connections has claimed."""

    @property
    def destination(self) -> str | None:
        """What its rows are for; None: the app's own broker."""
        return self._lane.destination

    def claim(
        self,
        limit: int,
        lease: float,
        relay_id: str,
        *,
        max_bytes: int | None = None,
        adopt: bool = False,
        orphans: bool = True,
        in_hand: Collection[int] = (),  # noqa: ARG002  only rows with a key need it
    ) -> list[ClaimedMessage]:
        """Claim what is due. If there is nothing, the time of the next row is known afterwards."""
        most = sys.maxsize if max_bytes is None else max_bytes
        request = ClaimRequest(limit, lease, relay_id, most, adopt, orphans, self._lane)
        began = monotonic()
        leased = self._lease(request)
        leased.sort()
        if not leased:
            self._look_ahead(began)
        elif self._dialect.watermark:
            self._watermark.advance(leased[0].position, leased[-1].position, len(leased))
        return [each if each.payload is None else _copy_payload(each) for _, each in leased]

    def begin_attempt(self, message: ClaimedMessage, relay_id: str) -> ClaimedMessage | None:
        counted = self._writes.count_attempt(message, relay_id)
        return counted if counted is None or counted.payload is None else _copy_payload(counted)

    def settle(self, outcomes: Sequence[Outcome], relay_id: str) -> int:
        return len(outcomes) - self._writes.record_outcomes(outcomes, relay_id)

    def release(self, ids: Sequence[int], relay_id: str) -> int:
        return self._writes.clear_leases(ids, relay_id)

    def renew(self, ids: Sequence[int], lease: float, relay_id: str) -> list[int]:
        return self._writes.renew_leases(ids, lease, relay_id)

    def pace(self, rate: Rate, rows: Sequence[ClaimedMessage], relay_id: str) -> set[int]:
        return self._pacing.pace(rate, rows, relay_id)

    def close(self) -> None:
        self._session.close()

    def _begin_claims(self) -> bool:
        """Whether this is the first claim on a connection."""
        if self._session.is_open and self._claimed_in == self._session.opened:
            return False
        with self._session.errors():
            self._session.open()
        self._claimed_in = self._session.opened
        return True

    def _lease(self, request: ClaimRequest) -> list[LeasedRow]:
        """From the watermark on; with a full scan if that finds nothing, or in a new session.

        The last session may have leased rows without receiving them, or may have ended in a crash
        of the server that lost its leases.
        """
        start = None if self._begin_claims() else self._watermark.start(monotonic())
        leased = self._lease_from(start, request)
        if not leased and start is not None and self._watermark.allows_full_scan(monotonic()):
            leased = self._lease_from(None, request)
        return leased

    def _lease_from(self, start: Start | None, request: ClaimRequest) -> list[LeasedRow]:
        began = monotonic()
        leased = self._dialect.lease_rows(self._session, request, start)
        if start is None:
            self._watermark.record_full_scan(began, monotonic())
        return leased

    def _look_ahead(self, began: float) -> None:
        """Read when the next row is due, if that is not known: also of those that have fallen due
        since a claim that began then."""
        now = monotonic()
        if not self._session.borrowed and self._next_due.should_look(now):
            seconds = stats.seconds_until_next(
                self._session, self._dialect, now - began, self._lane
            )
            self._next_due.record(seconds, monotonic())


def _copy_payload(message: ClaimedMessage) -> ClaimedMessage:
    """As bytes: some drivers return a view of their own memory."""
    return message._replace(payload=bytes(message.payload or b""))
