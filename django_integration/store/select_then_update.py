"""A claim for databases whose UPDATE can't return the row's old values: SELECT, UPDATE, COMMIT.

The SELECT returns the contents only of rows so small that they always fit; which rows are taken is
decided here, by their sizes. The contents of larger rows that fit are fetched separately, so no
result is much larger than `max_bytes`. `mysql.py` and `sqlite.py` fill in the differences.
"""

# ruff: noqa: S608  SQL text is joined from our own names; values are always parameters
from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.messages import CONTENTS, ClaimedMessage
from celery_outbox_steps.store import how_many_fit
from django_integration.store.dialect import ClaimRequest, Dialect, LeasedRow, with_contents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_integration.schema import Lane, MessageTable
    from django_integration.store.session import Session
    from django_integration.store.watermark import Start

FLAGS = slice(
    ClaimedMessage._fields.index("attempted"), ClaimedMessage._fields.index("oversized") + 1
)
"""The columns that are truth values, which these databases return as numbers."""


class SelectThenUpdate(Dialect):
    """The claim of MySQL, MariaDB and SQLite."""

    def lease_rows(
        self, session: Session, request: ClaimRequest, start: Start | None
    ) -> list[LeasedRow]:
        with session.transaction():
            rows = session.rows(*self.claim_statement(request, start))
            rows = rows[: how_many_fit((size for _, size, *_ in rows), request.max_bytes)]
            if rows:
                self._set_lease(session, request, [row_id for _, _, row_id, *_ in rows])
            small = _fits_always(request)
            large = [row_id for _, size, row_id, *_ in rows if small < size <= request.max_bytes]
            contents = self._read_contents(session, request.lane.table, large)
        return [_leased_row(*row, contents=contents) for row in rows]

    def claim_statement(self, request: ClaimRequest, start: Start | None) -> tuple[str, list[Any]]:
        sql = _select_sql(
            self,
            request.lane,
            adopt=request.adopt,
            orphans=request.orphans,
            from_watermark=start is not None,
        )
        small = [_fits_always(request)] * len(CONTENTS)
        params = self.claimable_params(request, start)
        return sql, [*small, request.relay_id, request.max_bytes, *params, request.limit]

    def _set_lease(self, session: Session, request: ClaimRequest, ids: Sequence[int]) -> None:
        selected, params = self.id_in(ids)
        session.run(
            f"UPDATE {request.lane.table.name}{self.primary_key_hint}"
            f" SET claimed_by = %s, claimed_until = {self.from_now} WHERE {selected}",
            [request.relay_id, request.lease, *params],
        )

    def _read_contents(
        self, session: Session, table: MessageTable, ids: Sequence[int]
    ) -> dict[int, tuple[Any, ...]]:
        if not ids:
            return {}
        selected, params = self.id_in(ids)
        rows = session.rows(
            f"SELECT id, {', '.join(CONTENTS)} FROM {table.name}{self.primary_key_hint}"
            f" WHERE {selected}",
            params,
        )
        return {row[0]: row[1:] for row in rows}


@lru_cache(maxsize=256)
def _select_sql(
    dialect: SelectThenUpdate,
    lane: Lane,
    *,
    adopt: bool,
    orphans: bool,
    from_watermark: bool,
) -> str:
    """Position, size, and the columns of `ClaimedMessage`."""
    claimable = dialect.claimable(lane, adopt=adopt, orphans=orphans, from_watermark=from_watermark)
    fits, oversized = (f"({dialect.content_size}) {sign} %s" for sign in ("<=", ">"))
    columns = dialect.claimed_columns(lane.table, fits, "COALESCE(claimed_by <> %s, 0)", oversized)
    return (
        f"SELECT {dialect.position}, {dialect.content_size}, {columns}"
        f" FROM {dialect.along_due(lane.table)}"
        f" WHERE {claimable} ORDER BY due_at, id LIMIT %s{dialect.skip_locked}"
    )


def _fits_always(request: ClaimRequest) -> int:
    """The size up to which a row fits, whatever the sizes of the others."""
    return request.max_bytes // request.limit


def _leased_row(
    position: Any, _size: int, *fields: Any, contents: dict[int, tuple[Any, ...]]
) -> LeasedRow:
    before, flags, after = fields[: FLAGS.start], map(bool, fields[FLAGS]), fields[FLAGS.stop :]
    message = ClaimedMessage(*before, *flags, *after)
    if message.id in contents:
        message = with_contents(message, contents[message.id])
    return LeasedRow(position, message)
