"""Which rows of a batch may be sent: of each key, the first one that is not published.

A claim makes sure that nothing outside the batch comes before its rows. Within the batch, a message
is sent once the broker has confirmed the one before it; if that fails, the others of its key are
not sent, and go back into the table. Rows without a key are free. Pure: nothing here sends.
"""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_outbox_steps.messages import ClaimedMessage


class Order:
    """The rows of a batch by key, each key's in the order in which they were stored."""

    def __init__(self, rows: Iterable[ClaimedMessage]) -> None:
        self._left: dict[str, list[int]] = defaultdict(list)
        """Ids that are not published yet, the first one last."""
        for row in sorted(rows, key=lambda each: each.id, reverse=True):
            if row.order_key is not None:
                self._left[row.order_key].append(row.id)

    def allows(self, row: ClaimedMessage) -> bool:
        return row.order_key is None or self._left[row.order_key][-1:] == [row.id]

    def passed(self, row: ClaimedMessage) -> None:
        """The row is published, or needs not be."""
        if row.order_key is not None:
            self._left[row.order_key].remove(row.id)

    def waits(self, row: ClaimedMessage) -> bool:
        """Whether a row of a later batch has to wait for one of these."""
        return row.order_key is not None and bool(self._left.get(row.order_key))


_key_of = attrgetter("order_key")


def order_of(rows: list[ClaimedMessage]) -> Order | None:
    """None if no row has a key."""
    return Order(rows) if any(map(_key_of, rows)) else None
