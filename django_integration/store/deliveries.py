"""Messages for destinations: one connection per database, for the relays of all of them.

Each destination has a relay with a thread of its own, so that one that hangs delays no other; their
statements take turns on one connection, however many destinations there are. `wait()` is for one
more thread, which hears PostgreSQL's notifications and says whose rows are due. `lane.py` claims
and settles, `order.py` keeps messages with a key in order.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from celery_outbox_steps.messages import Expired, Published
from django_integration.schema import DELIVERIES, Lane
from django_integration.store import stats
from django_integration.store.fleet import FleetTables
from django_integration.store.lane import LaneStore
from django_integration.store.listen import ANY, Listener, WakePipe
from django_integration.store.order import Order
from django_integration.store.session import SharedSession

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from celery_outbox_steps.fleet import Pause
    from celery_outbox_steps.messages import ClaimedMessage, Outcome
    from celery_outbox_steps.store import Sample
    from django_integration.store.dialect import Dialect

MOST_MARKS = 255
"""So many destinations can be woken each by itself. A wake-up of any further one wakes all."""
MOST_CLAIMS = 20
"""Claims in a row that may find nothing but rows that wait for others of their key."""


class Deliveries:
    """The messages for destinations of one database. A `celery_outbox_steps.store.DeliveryStore`.

    A given `connection` is used instead of an own one, as by `DjangoStore`.
    """

    def __init__(
        self,
        alias: str,
        dialect: Dialect,
        *,
        keep: bool,
        notify: bool,
        connection: BaseDatabaseWrapper | None,
    ) -> None:
        self.name = alias
        self._dialect = dialect
        self._keep = keep
        self._notify = notify and dialect.notifies and connection is None
        self._heard: set[str] = set()
        self._listener = Listener(DELIVERIES.channel, self._heard.add)
        self._marks: dict[str | None, bytes] = {None: ANY}
        """By destination, the byte that a wake-up for it writes."""
        self._woken: set[str | None] = set()
        """The destinations of wake-ups; None if one was for all of them."""
        self._wake_pipe = WakePipe(self._note_wake_ups)
        self._session = SharedSession(
            alias,
            self._prepare_session,
            connection=connection,
            begin=dialect.begin_transaction,
            options=dialect.options,
        )
        self._fleet = FleetTables(self._session, dialect)

    def lane(self, destination: str) -> DestinationStore:
        if len(self._marks) <= MOST_MARKS:
            self._marks.setdefault(destination, bytes([len(self._marks)]))
        return DestinationStore(self._session, self._dialect, destination, keep=self._keep)

    def wait(self, timeout: float) -> set[str] | None:
        heard, descriptors = self._hear()
        if not heard:
            # Without the lock: others work on the connection meanwhile, which may end the wait too.
            self._wake_pipe.wait(timeout, *descriptors)
            heard, _ = self._hear()
        woken, self._woken = self._woken, set()
        return None if None in woken else heard | {each for each in woken if each is not None}

    def wake(self, destination: str | None = None) -> None:
        self._wake_pipe.write(self._marks.get(destination, ANY))

    def pauses(self) -> dict[str, Pause]:
        return self._fleet.pauses()

    def close(self) -> None:
        self._session.close()

    def _prepare_session(self, session: SharedSession) -> None:
        self._listener.listening = False
        if not session.borrowed:
            self._dialect.configure_session(session)
        if self._notify:
            self._listener.begin(session, pooled=self._dialect.pooled)

    def _hear(self) -> tuple[set[str], list[int]]:
        """The destinations that were named by notifications, and the descriptor to wait for."""
        with self._session.lock:
            if not (self._listener.listening and self._session.is_open):
                return set(), []
            with self._session.errors():
                self._listener.heard(self._session)
                heard = set(self._heard)
                self._heard.clear()
                return heard, [self._session.raw.fileno()]

    def _note_wake_ups(self, marks: bytes) -> None:
        written = {bytes([mark]) for mark in set(marks)}
        self._woken |= {each for each, mark in self._marks.items() if mark in written}


class DestinationStore(LaneStore):
    """The rows of one destination. A `celery_outbox_steps.store.DestinationStore`."""

    def __init__(
        self, session: SharedSession, dialect: Dialect, destination: str, *, keep: bool
    ) -> None:
        super().__init__(session, dialect, Lane(DELIVERIES, destination), keep=keep)
        self._order = Order(session, dialect, self._writes, destination)

    def claim(
        self,
        limit: int,
        lease: float,
        relay_id: str,
        *,
        max_bytes: int | None = None,
        adopt: bool = False,
        orphans: bool = True,
        in_hand: Collection[int] = (),
    ) -> list[ClaimedMessage]:
        self._order.look_after()
        for _ in range(MOST_CLAIMS):
            claimed = super().claim(
                limit, lease, relay_id, max_bytes=max_bytes, adopt=adopt, orphans=orphans
            )
            waiting = self._order.hold_back(claimed, in_hand, relay_id)
            if len(waiting) < len(claimed) or not claimed:
                return [row for row in claimed if row.id not in waiting]
        self._next_due.record(0.0, monotonic())  # there may be more: claim again at once
        return []

    def settle(self, outcomes: Sequence[Outcome], relay_id: str) -> int:
        fenced = super().settle(outcomes, relay_id)
        passed = {
            each.message.order_key
            for each in outcomes
            if each.message.order_key is not None and isinstance(each, (Published, Expired))
        }
        if passed:
            self._order.release_after_settle(passed)
        return fenced

    def seconds_to_wait(self, timeout: float) -> float:
        now = monotonic()
        left = self._next_due.seconds_left(now)
        if left is None or left > timeout:
            return timeout
        self._next_due.waited(now + left)
        return left

    def look_again(self) -> None:
        self._next_due.forget()

    def sample(self) -> Sample:
        return stats.read_sample(self._session, self._dialect, self._lane)

    def close(self) -> None:
        """The connection is that of all destinations: `Deliveries.close` closes it."""
