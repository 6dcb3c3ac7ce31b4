"""A claim where UPDATE can't tell what stood in the row before: SELECT, UPDATE, then COMMIT.

The SELECT brings the contents of small rows only, those that fit in any case; which rows are taken
is decided here, by their sizes. Contents of larger rows that fit are fetched on their own, so no
answer of the database is much larger than was ordered.
"""

# ruff: noqa: S608  SQL text is joined from names of ours; values are always parameters
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_outbox_steps.messages import CONTENTS, ClaimedMessage
from celery_outbox_steps.store import how_many_fit
from django_integration.store.dialect import OUTBOX, Dialect, Found, Order, with_contents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_integration.store.session import Session
    from django_integration.store.watermark import Start

FLAGS = ClaimedMessage._fields.index("attempted")
"""From here on the columns are truth values, which these databases hand out as numbers."""


class SelectThenUpdate(Dialect):
    """The claim of MySQL, MariaDB and SQLite."""

    def claim(self, session: Session, order: Order, start: Start | None) -> list[Found]:
        with session.transaction():
            rows = session.rows(*self.claim_statement(order, start))
            rows = rows[: how_many_fit((size for _, size, *_ in rows), order.max_bytes)]
            if rows:
                self._lease(session, order, [row_id for _, _, row_id, *_ in rows])
            contents = self._contents(
                session,
                [row_id for _, size, row_id, *_ in rows if _share(order) < size <= order.max_bytes],
            )
        return [_found(*row, contents=contents) for row in rows]

    def claim_statement(self, order: Order, start: Start | None) -> tuple[str, list[Any]]:
        """Position, size, and the columns of `ClaimedMessage`."""
        due, params = self.due(order, start)
        small, large = (f"({self.size}) {sign} %s" for sign in ("<=", ">"))
        columns = self.columns(small, "COALESCE(claimed_by <> %s, 0)", large)
        sql = (
            f"SELECT {self.position}, {self.size}, {columns} FROM {OUTBOX}{self.hint}"
            f" WHERE {due} ORDER BY due_at, id LIMIT %s{self.skip_locked}"
        )
        shares = [_share(order)] * len(CONTENTS)
        return sql, [*shares, order.relay_id, order.max_bytes, *params, order.limit]

    def _lease(self, session: Session, order: Order, ids: Sequence[int]) -> None:
        which, params = self.ids(ids)
        session.run(
            f"UPDATE {OUTBOX}{self.by_id} SET claimed_by = %s, claimed_until = {self.later}"
            f" WHERE {which}",
            [order.relay_id, order.lease, *params],
        )

    def _contents(self, session: Session, ids: Sequence[int]) -> dict[int, tuple[Any, ...]]:
        if not ids:
            return {}
        which, params = self.ids(ids)
        columns = ", ".join(CONTENTS)
        rows = session.rows(f"SELECT id, {columns} FROM {OUTBOX}{self.by_id} WHERE {which}", params)
        return {row[0]: row[1:] for row in rows}


def _share(order: Order) -> int:
    """The size up to which a row fits whatever the others of its claim are."""
    return order.max_bytes // order.limit


def _found(position: Any, _size: int, *fields: Any, contents: dict[int, tuple[Any, ...]]) -> Found:
    message = ClaimedMessage._make((*fields[:FLAGS], *map(bool, fields[FLAGS:])))
    if message.id in contents:
        message = with_contents(message, contents[message.id])
    return Found(position, message)
