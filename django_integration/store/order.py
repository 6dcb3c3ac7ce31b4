"""Messages with a key reach their destination one after the other: which rows may be sent.

**A row is sent only if every earlier row with its key is published**, or discarded. A claim finds
out afterwards, and holds back what has to wait: such a row is due at no time, so that claims need
not read it again. When a row is settled, the next one of its key is due. Both look once more after
they have written, so that of two relays that do this at the same time one sees the other's work; a
relay that dies in between leaves a row held back, which `look_after` finds.

A dead letter holds its key back too, until it is replayed, and so published first, or discarded.
"""

# ruff: noqa: S608  SQL text is joined from our own names; values are always parameters
from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from celery_outbox_steps.errors import StoreError
from django_integration.schema import DEAD_LETTER, DELIVERIES, FAR, HELD_BACK, ORDER_INDEX

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from celery_outbox_steps.messages import ClaimedMessage
    from django_integration.store.dialect import Dialect
    from django_integration.store.session import Session
    from django_integration.store.writes import Writes

FEW = 8
"""Up to this number of keys, several messages of each become due, for one claim to take."""
AT_ONCE = 500
"""Messages that become due together then, of all these keys."""
LOOK_AFTER_EVERY = 5.0
"""Seconds between two looks for rows that no relay will make due."""
LOOKED_AFTER = 1000
"""Rows per look. The next look goes on behind them, and sooner."""
LOOK_PAUSE = 20
"""The pause before it, as a multiple of the look's duration: looks take 5 % of the time."""


class Order:
    """The keys of one destination."""

    def __init__(
        self, session: Session, dialect: Dialect, writes: Writes, destination: str
    ) -> None:
        self._session = session
        self._dialect = dialect
        self._writes = writes
        self._destination = destination
        self._name = f"{DELIVERIES.name}{dialect.primary_key_hint}"
        self._look_after_at = float("-inf")
        self._looked_up_to = 0
        self._owed: set[str] = set()
        """Keys whose next row could not be released after a settle."""

    def hold_back(
        self, claimed: Sequence[ClaimedMessage], in_hand: Collection[int], relay_id: str
    ) -> set[int]:
        """Give back those of the claimed rows that have to wait. Returns their ids.

        `in_hand` are rows that the relay publishes before these.
        """
        keyed = [row for row in claimed if row.order_key is not None]
        if not keyed:
            return set()
        barriers = self._barriers([row.id for row in keyed], in_hand, relay_id)
        waiting = [row for row in keyed if barriers.get(row.order_key, row.id) < row.id]
        if waiting:
            self._writes.hold_back(waiting, relay_id)
            self.release({str(row.order_key) for row in waiting})
        return {row.id for row in waiting}

    def release(self, keys: Collection[str]) -> None:
        """Make the first message of each key due, if it is held back."""
        first = self._first(keys) if keys else {}
        held_back = self._held_back(list(first.values())) if first else []
        dead = self._dead(list(first)) if held_back else {}
        ready = {
            key: row_id
            for key, row_id in first.items()
            if row_id in held_back and row_id < dead.get(key, row_id + 1)
        }
        if ready:
            self._make_due(ready)

    def release_after_settle(self, keys: Collection[str]) -> None:
        """The same, once the rows before them are settled. If it fails, the next claim does it:
        the settle counts all the same."""
        self._owed.update(keys)
        with suppress(StoreError):
            self._release_owed()

    def look_after(self) -> None:
        """Release rows that a relay which died, or a row that was discarded, left held back."""
        self._release_owed()
        began = monotonic()
        if began < self._look_after_at:
            return
        found = self._session.rows(
            f"SELECT id, order_key FROM {self._dialect.along_due(DELIVERIES)}"
            f" WHERE destination = %s AND due_at = {FAR[self._dialect.vendor]} AND id > %s"
            f" AND {self._dialect.is_state(HELD_BACK)} ORDER BY due_at, id LIMIT %s",
            [self._destination, self._looked_up_to, LOOKED_AFTER],
        )
        self.release({key for _, key in found if key is not None})
        there_are_more = len(found) == LOOKED_AFTER
        self._looked_up_to = found[-1][0] if there_are_more else 0
        now = monotonic()
        pause = LOOK_PAUSE * (now - began) if there_are_more else LOOK_AFTER_EVERY
        self._look_after_at = now + pause

    def _release_owed(self) -> None:
        if self._owed:
            self.release(self._owed)
            self._owed.clear()

    def _barriers(
        self, ids: Sequence[int], in_hand: Collection[int], relay_id: str
    ) -> dict[str | None, int]:
        """By key, the first message that is neither claimed nor in hand: nothing may pass it."""
        claimed, claimed_params = self._dialect.id_in(ids)
        ours, our_params = self._dialect.id_in([*ids, *in_hand], "other.id")
        others = self._dialect.along(ORDER_INDEX, f"{DELIVERIES.name} AS other")
        # The keys come from the table: as parameters, MySQL would compare them by other rules.
        found = self._session.rows(
            f"SELECT mine.order_key, (SELECT other.id FROM {others} WHERE other.destination = %s"
            " AND other.order_key = mine.order_key AND"
            f" (other.claimed_by IS NULL OR other.claimed_by <> %s OR NOT {ours})"
            " ORDER BY other.id LIMIT 1),"
            f" (SELECT min(position) FROM {DEAD_LETTER} WHERE destination = %s"
            f" AND {DEAD_LETTER}.order_key = mine.order_key)"
            f" FROM (SELECT DISTINCT order_key FROM {self._name}"
            f" WHERE {claimed}) AS mine",
            [self._destination, relay_id, *our_params, self._destination, *claimed_params],
        )
        return {
            key: min(each for each in barriers if each is not None)
            for key, *barriers in found
            if any(each is not None for each in barriers)
        }

    def _first(self, keys: Collection[str]) -> dict[str, int]:
        found = self._session.rows(*self._dialect.first_by_key(list(keys), self._destination))
        return {key: row_id for key, row_id in found if row_id is not None}

    def _held_back(self, ids: Sequence[int]) -> set[int]:
        selected, params = self._dialect.id_in(ids)
        held_back = self._dialect.is_state(HELD_BACK)
        found = self._session.rows(
            f"SELECT id FROM {self._name} WHERE {selected} AND {held_back}", params
        )
        return {row_id for (row_id,) in found}

    def _dead(self, keys: Sequence[str]) -> dict[str, int]:
        selected, params = self._dialect.id_in(keys, "order_key")
        found = self._session.rows(
            f"SELECT order_key, min(position) FROM {DEAD_LETTER}"
            f" WHERE destination = %s AND {selected} GROUP BY order_key",
            [self._destination, *params],
        )
        return dict(found)

    def _make_due(self, ready: dict[str, int]) -> None:
        """The first rows of these keys; of a few keys, the rows that follow them too.

        Those that a transaction of the project has locked are left to `look_after`: the relays of
        all destinations would wait with this one.
        """
        ids = list(ready.values())
        if len(ready) <= FEW:
            ids = [each for key, row_id in ready.items() for each in self._next(key, row_id, ready)]
        selected, params = self._dialect.id_in(ids)
        with self._session.transaction():
            locked = self._session.rows(
                f"SELECT id FROM {self._name} WHERE {selected}"
                f" AND {self._dialect.is_state(HELD_BACK)}{self._dialect.skip_locked}",
                params,
            )
            if locked:
                selected, params = self._dialect.id_in([row_id for (row_id,) in locked])
                sql = f"UPDATE {self._name} SET due_at = {self._dialect.now} WHERE {selected}"
                self._session.run(sql, params)

    def _next(self, key: str, row_id: int, keys: Collection[str]) -> list[int]:
        """A key's next rows, from this one on: those that become due together."""
        found = self._session.rows(
            f"SELECT id FROM {self._dialect.along(ORDER_INDEX, DELIVERIES.name)}"
            " WHERE destination = %s AND order_key = %s AND id >= %s ORDER BY id LIMIT %s",
            [self._destination, key, row_id, AT_ONCE // len(keys)],
        )
        return [each for (each,) in found]
