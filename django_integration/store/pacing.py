"""Release rates in the database: one row for each rate, which the relays lock in turn.

A relay that is about to send messages with a rate takes turns for them. What exceeds the rate is
given back to the table, due when its turn comes; nothing of it is lost if the relay dies meanwhile.
The rules are `celery_outbox_steps.rates.take_turns`. Without a rate, a relay looks once, when it
begins to work, whether there were any.
"""

# ruff: noqa: S608  SQL text is joined from our own names; values are always parameters
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_outbox_steps.rates import Budget, differ, take_turns
from django_integration.schema import (
    DELIVERIES,
    DUE_TIME_AHEAD,
    NEVER_ATTEMPTED,
    RATE,
    TASKS,
    UNLEASED,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from celery_outbox_steps.messages import ClaimedMessage
    from celery_outbox_steps.rates import Rate
    from django_integration.schema import MessageTable
    from django_integration.store.dialect import Dialect
    from django_integration.store.session import Session
    from django_integration.store.writes import Writes

CHUNK = 1000


class Pacing:
    """The rates of one database, for the rows of one table."""

    def __init__(self, session: Session, dialect: Dialect, writes: Writes) -> None:
        self._session = session
        self._dialect = dialect
        self._writes = writes

    def pace(self, rate: Rate, rows: Sequence[ClaimedMessage], relay_id: str) -> set[int]:
        """The ids of those that may be sent now. The relay gives the others back.

        A budget that the relay has used, and does not need because it fails, is lost: that makes
        the rate lower for a moment, and never higher.
        """
        while True:
            with self._session.transaction():
                budget = self._lock_budget(rate)
                if budget is not None:
                    return self._take(rate, budget, rows, relay_id)
            self._session.try_run(
                f"INSERT INTO {RATE} (name, per_second, used_until, planned_until)"
                f" VALUES (%s, %s, {self._dialect.now}, {self._dialect.from_now})",
                [rate.pattern, rate.per_second, Budget().planned_until],
            )

    def _lock_budget(self, rate: Rate) -> Budget | None:
        until = self._dialect.seconds_until.format
        found = self._session.rows(
            f"SELECT {until('used_until')}, {until('planned_until')} FROM {RATE}"
            f" WHERE name = %s{self._dialect.for_update}",
            [rate.pattern],
        )
        return Budget(*map(float, found[0])) if found else None

    def _take(
        self, rate: Rate, budget: Budget, rows: Sequence[ClaimedMessage], relay_id: str
    ) -> set[int]:
        ids = [row.id for row in rows]
        had_turns = self._writes.paced(ids, relay_id)
        in_order = [each for each in ids if each in had_turns]
        in_order += [each for each in ids if each not in had_turns]
        turns = take_turns(rate, budget, len(ids) - len(had_turns), len(had_turns))
        self._move_budget(rate, budget, turns.budget)
        granted, rest = in_order[: turns.granted], in_order[turns.granted :]
        orphaned = {row.id for row in rows if row.orphaned}
        self._writes.postpone_turns(dict(zip(rest, turns.delays, strict=True)), orphaned, relay_id)
        return set(granted)

    def _move_budget(self, rate: Rate, before: Budget, after: Budget) -> None:
        """By how much, and not to a time from now: the clock has gone on since the budget was
        read, and a part of the rate would be lost each time."""
        moved = (new - old for old, new in zip(before, after, strict=True))
        later = self._dialect.after.format
        values: list[Any] = [*moved, rate.pattern]
        self._session.run(
            f"UPDATE {RATE} SET used_until = {later('used_until')},"
            f" planned_until = {later('planned_until')} WHERE name = %s",
            values,
        )


def use_rates(session: Session, dialect: Dialect, rates: Collection[Rate]) -> int:
    """Forget the turns that were given by other rates than these."""
    known = dict(session.rows(f"SELECT name, per_second FROM {RATE}"))
    if not differ(known, rates):
        return 0
    forgotten = sum(_forget_turns(session, dialect, table) for table in (TASKS, DELIVERIES))
    # Last: if this relay dies before, the next one begins again.
    session.run(f"DELETE FROM {RATE}")
    return forgotten


def _forget_turns(session: Session, dialect: Dialect, table: MessageTable) -> int:
    """In chunks by id. Rows that others have locked keep their turns."""
    waiting = dialect.is_state(DUE_TIME_AHEAD & UNLEASED & NEVER_ATTEMPTED)
    forgotten, last = 0, 0
    while True:
        with session.transaction():
            found = session.rows(
                f"SELECT id FROM {table.name}{dialect.primary_key_hint} WHERE id > %s"
                f" AND paced IS NOT NULL AND {waiting} ORDER BY id LIMIT %s{dialect.skip_locked}",
                [last, CHUNK],
            )
            ids = [row_id for (row_id,) in found]
            if ids:
                selected, params = dialect.id_in(ids)
                session.run(
                    f"UPDATE {table.name}{dialect.primary_key_hint}"
                    f" SET due_at = {dialect.now}, paced = NULL WHERE {selected}",
                    params,
                )
        if not ids:
            return forgotten
        forgotten, last = forgotten + len(ids), ids[-1]
