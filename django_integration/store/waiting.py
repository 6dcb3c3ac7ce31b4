"""Calls that still wait in the table: list them, cancel them, give them another time.

Only rows that no relay has claimed are changed. The lock waits for a claim that is under way, and a
claim skips rows that are locked here: a call is either changed or published, never both. On a
borrowed connection everything is part of the caller's transaction. `DjangoStore` calls it for the
commands, `enqueue/changes.py` for `app.outbox` and `app.control.revoke()`.
"""

# ruff: noqa: S608  SQL text is joined from our own names; values are always parameters
from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from celery_outbox_steps.envelope import ascii_text, seconds_to_live, stored_id
from celery_outbox_steps.errors import OutboxError
from celery_outbox_steps.store import SHOWN, ScheduledCall
from django_integration.schema import (
    DUE_AT_ETA,
    DUE_TIME_AHEAD,
    ETA,
    NOTIFY,
    NOTIFY_DESTINATION,
    NOTIFY_HELD,
    SCHEDULED,
    TASKS,
    UNCLAIMED,
    UNTOUCHED,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from django_integration.schema import Lane, MessageTable, When
    from django_integration.store.dialect import Dialect
    from django_integration.store.session import Session

CHUNK = 500


def list_scheduled(
    session: Session, dialect: Dialect, lane: Lane, task_name: str | None, limit: int
) -> list[ScheduledCall]:
    """Calls that are not due yet, the next one first."""
    named, params = "", []
    if task_name is not None:
        pattern = dialect.like_pattern(ascii_text(task_name))
        named, params = f" AND {dialect.task_name_matches}", [pattern]
    found = session.rows(
        f"SELECT task_id, task_name, {dialect.iso_text.format('due_at')},"
        f" {dialect.seconds_until.format('due_at')}, substr(coalesce(redacted_args, args), 1, %s),"
        f" substr(coalesce(redacted_kwargs, kwargs), 1, %s) FROM {dialect.along_due(lane.table)}"
        f" WHERE {lane.rows}{dialect.is_state(SCHEDULED)}{named} ORDER BY due_at, id LIMIT %s",
        [SHOWN, SHOWN, *lane.params, *params, limit],
    )
    return [
        ScheduledCall(task, name, due, float(left), args, kwargs, lane.destination)
        for task, name, due, left, args, kwargs in found
    ]


class Waiting:
    """Rows of one table that still wait, on one session."""

    def __init__(self, session: Session, dialect: Dialect, table: MessageTable) -> None:
        self._session = session
        self._dialect = dialect
        self._table = table
        self._name = f"{table.name}{dialect.primary_key_hint}"

    def cancel(self, task_ids: Sequence[str]) -> dict[str, bool]:
        """Delete the rows of these tasks. See `OperatorStore.cancel`."""
        return self._change(task_ids, self._delete, self._dialect.for_update)

    def send_now(self, task_ids: Sequence[str]) -> list[str]:
        """Make the rows of these tasks due. Returns the tasks that still waited."""
        return list(self._change(task_ids, self.make_due, self._dialect.replace_lock))

    def make_due(self, ids: list[int]) -> None:
        """Make these rows due, if they are not. A wanted time that is ahead moves too: lateness
        counts from it."""
        now = self._dialect.now
        selected, params = self._dialect.id_in(ids)
        self._session.run(
            f"UPDATE {self._name} SET"
            f" eta = CASE WHEN eta > {now} THEN {now} ELSE eta END, due_at = {now}"
            f" WHERE {selected} AND {self._dialect.is_state(DUE_TIME_AHEAD)}",
            params,
        )
        self._notify(NOTIFY, ids)

    def reschedule(self, task_id: str, when: When) -> bool:
        """Make the row of this task due at another time. Returns whether it still waited."""
        move = partial(self._move, when)
        return bool(self._change([task_id], move, self._dialect.replace_lock))

    def _delete(self, ids: list[int]) -> None:
        self._session.run(*self._dialect.delete_by_id(self._table.name, ids))

    def _move(self, when: When, ids: list[int]) -> None:
        eta, due = ETA[self._dialect.vendor], DUE_AT_ETA[self._dialect.vendor]
        selected, params = self._dialect.id_in(ids)
        self._session.run(
            f"UPDATE {self._name} SET eta = {eta}, due_at = {due} WHERE {selected}",
            [*when, *when, *params],
        )
        self._refuse_if_expired(ids)
        self._notify(NOTIFY_HELD, ids)

    def _refuse_if_expired(self, ids: list[int]) -> None:
        """A call that has expired when it is due would never be published."""
        selected, params = self._dialect.id_in(ids)
        for options, held in self._session.rows(
            f"SELECT options, {self._dialect.seconds_held} FROM {self._name} WHERE {selected}",
            params,
        ):
            lifetime = seconds_to_live(options)
            if lifetime is not None and lifetime <= held:
                raise OutboxError(
                    f"This call expires {held - lifetime:.0f} seconds before that time, and would"
                    " never run. Its message can't be changed: revoke it and call the task again."
                )

    def _change(
        self, task_ids: Sequence[str], change: Callable[[list[int]], None], lock: str
    ) -> dict[str, bool]:
        """Change the rows of these tasks that no relay has claimed: chunk by chunk, each in a
        transaction. Returns the tasks that had one, and whether no relay ever held it."""
        wanted = {stored_id(each): each for each in sorted(task_ids)}  # in one order: no deadlock
        changed: dict[str, bool] = {}
        for start in range(0, len(wanted), CHUNK):
            with self._session.transaction():
                rows = self._lock_waiting(list(wanted)[start : start + CHUNK], lock)
                if rows:
                    change([row_id for row_id, *_ in rows])
            for _, task_id, untouched in rows:
                name = wanted[task_id]
                changed[name] = bool(untouched) and changed.get(name, True)
        return changed

    def _lock_waiting(self, task_ids: list[str], lock: str) -> list[tuple[Any, ...]]:
        """Row id, task id, and whether no relay ever held it, of rows that may be changed.

        They are locked by row id, as a relay's settle does: by task id, the two could deadlock. A
        row may have another call by then, which has taken the place of the one that was looked for.
        """
        session, dialect = self._session, self._dialect
        if dialect.take_write_lock:
            session.run(dialect.take_write_lock)
        selected, params = dialect.id_in(task_ids, "task_id")
        unclaimed = dialect.is_state(UNCLAIMED)
        table = dialect.by(self._table.task_id_index, self._table.name)
        found = session.rows(
            f"SELECT id, task_id FROM {table} WHERE {selected} AND {unclaimed}", params
        )
        # MySQL ignores the case
        ids = [row_id for row_id, task_id in found if task_id in task_ids]
        if not ids:
            return []
        selected, params = dialect.id_in(ids)
        locked = session.rows(
            f"SELECT id, task_id, {dialect.is_state(UNTOUCHED)} FROM {self._name}"
            f" WHERE {selected} AND {unclaimed} ORDER BY id{lock}",
            params,
        )
        return [row for row in locked if row[1] in task_ids]

    def _notify(self, for_tasks: str, ids: list[int]) -> None:
        if not self._dialect.notifies:
            return
        if self._table is TASKS:
            self._session.run(f"SELECT {for_tasks}")
        else:
            selected, params = self._dialect.id_in(ids)
            self._session.run(
                f"SELECT {NOTIFY_DESTINATION} FROM {self._name} WHERE {selected}", params
            )
