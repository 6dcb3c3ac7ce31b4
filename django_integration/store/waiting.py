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
    NOTIFY_HELD,
    OUTBOX,
    SCHEDULED,
    UNCLAIMED,
    UNTOUCHED,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from django_integration.schema import When
    from django_integration.store.dialect import Dialect
    from django_integration.store.session import Session

CHUNK = 500


def list_scheduled(
    session: Session, dialect: Dialect, task_name: str | None, limit: int
) -> list[ScheduledCall]:
    """Calls that are not due yet, the next one first."""
    named, params = "", []
    if task_name is not None:
        pattern = dialect.like_pattern(ascii_text(task_name))
        named, params = f" AND {dialect.task_name_matches}", [pattern]
    found = session.rows(
        f"SELECT task_id, task_name, {dialect.iso_text.format('due_at')},"
        f" {dialect.seconds_until.format('due_at')}, substr(coalesce(redacted_args, args), 1, %s),"
        f" substr(coalesce(redacted_kwargs, kwargs), 1, %s) FROM {OUTBOX}{dialect.due_index_hint}"
        f" WHERE {dialect.is_state(SCHEDULED)}{named} ORDER BY due_at, id LIMIT %s",
        [SHOWN, SHOWN, *params, limit],
    )
    return [
        ScheduledCall(task, name, due, float(left), args, kwargs)
        for task, name, due, left, args, kwargs in found
    ]


def cancel(session: Session, dialect: Dialect, task_ids: Sequence[str]) -> dict[str, bool]:
    """Delete the rows of these tasks. See `OperatorStore.cancel`."""

    def delete(ids: list[int]) -> None:
        session.run(*dialect.delete_by_id(OUTBOX, ids))

    return _change(session, dialect, task_ids, delete, dialect.for_update)


def send_now(session: Session, dialect: Dialect, task_ids: Sequence[str]) -> list[str]:
    """Make the rows of these tasks due. Returns the tasks that still waited."""
    make = partial(make_due, session, dialect)
    return list(_change(session, dialect, task_ids, make, dialect.replace_lock))


def make_due(session: Session, dialect: Dialect, ids: list[int]) -> None:
    """Make these rows due, if they are not. A wanted time that is ahead moves too: lateness counts
    from it."""
    now = dialect.now
    selected, params = dialect.id_in(ids)
    session.run(
        f"UPDATE {OUTBOX}{dialect.primary_key_hint} SET"
        f" eta = CASE WHEN eta > {now} THEN {now} ELSE eta END, due_at = {now}"
        f" WHERE {selected} AND {dialect.is_state(DUE_TIME_AHEAD)}",
        params,
    )
    _notify(session, dialect, NOTIFY)


def reschedule(session: Session, dialect: Dialect, task_id: str, when: When) -> bool:
    """Make the row of this task due at another time. Returns whether it still waited."""
    eta, due = ETA[dialect.vendor], DUE_AT_ETA[dialect.vendor]

    def move(ids: list[int]) -> None:
        selected, params = dialect.id_in(ids)
        session.run(
            f"UPDATE {OUTBOX}{dialect.primary_key_hint} SET eta = {eta}, due_at = {due}"
            f" WHERE {selected}",
            [*when, *when, *params],
        )
        _refuse_if_expired(session, dialect, ids)
        _notify(session, dialect, NOTIFY_HELD)

    return bool(_change(session, dialect, [task_id], move, dialect.replace_lock))


def _refuse_if_expired(session: Session, dialect: Dialect, ids: list[int]) -> None:
    """A call that has expired when it is due would never be published."""
    selected, params = dialect.id_in(ids)
    for options, held in session.rows(
        f"SELECT options, {dialect.seconds_held} FROM {OUTBOX}{dialect.primary_key_hint}"
        f" WHERE {selected}",
        params,
    ):
        lifetime = seconds_to_live(options)
        if lifetime is not None and lifetime <= held:
            raise OutboxError(
                f"This call expires {held - lifetime:.0f} seconds before that time, and would never"
                " run. Its message can't be changed: revoke it and call the task again."
            )


def _change(
    session: Session,
    dialect: Dialect,
    task_ids: Sequence[str],
    change: Callable[[list[int]], None],
    lock: str,
) -> dict[str, bool]:
    """Change the rows of these tasks that no relay has claimed: chunk by chunk, each in a
    transaction. Returns the tasks that had one, and whether no relay ever held it."""
    wanted = {stored_id(each): each for each in sorted(task_ids)}  # in one order: no deadlock
    changed: dict[str, bool] = {}
    for start in range(0, len(wanted), CHUNK):
        with session.transaction():
            rows = _lock_waiting(session, dialect, list(wanted)[start : start + CHUNK], lock)
            if rows:
                change([row_id for row_id, *_ in rows])
        for _, task_id, untouched in rows:
            name = wanted[task_id]
            changed[name] = bool(untouched) and changed.get(name, True)
    return changed


def _lock_waiting(
    session: Session, dialect: Dialect, task_ids: list[str], lock: str
) -> list[tuple[Any, ...]]:
    """Row id, task id, and whether no relay ever held it, of rows that may be changed.

    They are locked by row id, as a relay's settle does: by task id, the two could deadlock. A row
    may have another call by then, which has taken the place of the one that was looked for.
    """
    if dialect.take_write_lock:
        session.run(dialect.take_write_lock)
    selected, params = dialect.id_in(task_ids, "task_id")
    unclaimed = dialect.is_state(UNCLAIMED)
    found = session.rows(
        f"SELECT id, task_id FROM {OUTBOX}{dialect.task_id_hint} WHERE {selected} AND {unclaimed}",
        params,
    )
    ids = [row_id for row_id, task_id in found if task_id in task_ids]  # MySQL ignores the case
    if not ids:
        return []
    selected, params = dialect.id_in(ids)
    locked = session.rows(
        f"SELECT id, task_id, {dialect.is_state(UNTOUCHED)}"
        f" FROM {OUTBOX}{dialect.primary_key_hint}"
        f" WHERE {selected} AND {unclaimed} ORDER BY id{lock}",
        params,
    )
    return [row for row in locked if row[1] in task_ids]


def _notify(session: Session, dialect: Dialect, notify: str) -> None:
    if dialect.notifies:
        session.run(f"SELECT {notify}")
