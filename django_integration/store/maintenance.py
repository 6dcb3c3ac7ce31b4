"""Dead letters are listed; they and kept rows are replayed and purged, in chunks.

None of it changes a row that a relay could claim. Two processes may do the same at once: each skips
what the other has locked, so nothing is replayed twice. `DjangoStore` calls it; the commands, the
purge task and the admin call `DjangoStore`.
"""

# ruff: noqa: S608  SQL text is joined from our own names; values are always parameters
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_outbox_steps.store import LONGEST_REASON, MESSAGE, DeadLetter
from django_integration.schema import (
    DEAD_LETTER,
    DELIVERY,
    INBOX,
    MESSAGE_COLUMNS,
    OUTBOX,
    PUBLISHED,
)

if TYPE_CHECKING:
    from celery_outbox_steps.store import DeadLetters
    from django_integration.schema import Lane
    from django_integration.store.dialect import Dialect
    from django_integration.store.session import Session

KIND = f"coalesce(kind, '{MESSAGE}')"
"""The kind of a dead letter. Relays leave the column empty, as those of earlier releases do."""

_SAME = {name: name for name in MESSAGE_COLUMNS}
_REPLAYS = (
    (OUTBOX, _SAME, "destination IS NULL"),
    (
        DELIVERY,
        {**_SAME, "destination": "destination", "order_key": "order_key", "id": "position"},
        "destination IS NOT NULL",
    ),
)
"""Where dead letters go at a replay: the table, its columns and those of the letter, and which."""


def list_dead(
    session: Session, dialect: Dialect, which: DeadLetters, limit: int
) -> list[DeadLetter]:
    """Dead letters, the newest first: they are only appended, so the ids are in this order."""
    where, params = _matching(dialect, which)
    found = session.rows(
        f"SELECT id, {KIND}, task_id, task_name, {dialect.iso_text.format('dead_at')},"
        f" {dialect.seconds_until.format('dead_at')}, retries, substr(failure_reason, 1, %s),"
        f" destination FROM {DEAD_LETTER} WHERE {where} ORDER BY id DESC LIMIT %s",
        [LONGEST_REASON, *params, limit],
    )
    return [
        DeadLetter(row_id, kind, task, name, died, -float(ahead), retries, *rest)
        for row_id, kind, task, name, died, ahead, retries, *rest in found
    ]


def count_dead(session: Session, dialect: Dialect, which: DeadLetters) -> int:
    """How many dead letters match."""
    where, params = _matching(dialect, which)
    return int(session.rows(f"SELECT count(*) FROM {DEAD_LETTER} WHERE {where}", params)[0][0])


def move_to_outbox(session: Session, dialect: Dialect, which: DeadLetters, limit: int) -> int:
    """Replay dead letters. Their retries and their age start at 0 again."""
    where, params = _matching(dialect, which)
    with session.transaction():
        found = session.rows(
            f"SELECT id FROM {DEAD_LETTER} WHERE {where} ORDER BY id LIMIT %s{dialect.skip_locked}",
            [*params, limit],
        )
        if not found:
            return 0
        ids = [row[0] for row in found]
        _copy_to_outbox(session, dialect, ids)
        return _delete(session, dialect, DEAD_LETTER, ids)


def delete_dead(
    session: Session, dialect: Dialect, which: DeadLetters, limit: int
) -> tuple[int, dict[str, set[str]]]:
    """Delete dead letters, the oldest first. Returns how many, and by destination the keys of
    messages that nothing holds back any more."""
    where, params = _matching(dialect, which)
    found = session.rows(
        f"SELECT id, destination, order_key FROM {DEAD_LETTER} WHERE {where}"
        " ORDER BY dead_at, id LIMIT %s",
        [*params, limit],
    )
    freed: dict[str, set[str]] = {}
    for _, destination, key in found:
        if key is not None:
            freed.setdefault(destination, set()).add(key)
    return _delete(session, dialect, DEAD_LETTER, [row[0] for row in found]), freed


def count_kept(session: Session, dialect: Dialect, lane: Lane, older_than: float) -> int:
    """How many published rows are older than this number of seconds."""
    rows = f"{lane.table.name} WHERE {lane.rows}{_published_before(dialect)}"
    found = session.rows(f"SELECT count(*) FROM {rows}", [*lane.params, -older_than])
    return int(found[0][0])


def delete_kept(
    session: Session, dialect: Dialect, lane: Lane, older_than: float, limit: int
) -> int:
    """Delete published rows; along the due index, where they are next to each other."""
    found = session.rows(
        f"SELECT id FROM {dialect.along_due(lane.table)}"
        f" WHERE {lane.rows}{_published_before(dialect)} ORDER BY due_at, id LIMIT %s",
        [*lane.params, -older_than, limit],
    )
    ids = [row_id for (row_id,) in found]
    return _delete(session, dialect, lane.table.name, ids, f" AND {PUBLISHED.text}")


def count_expired(session: Session, dialect: Dialect) -> int:
    """How many entries of the inbox have expired."""
    sql = f"SELECT count(*) FROM {INBOX} WHERE {_has_expired(dialect)}"
    return int(session.rows(sql)[0][0])


def delete_expired(session: Session, dialect: Dialect, limit: int) -> int:
    """Delete entries of the inbox, those that expired first."""
    found = session.rows(
        f"SELECT inbox_key FROM {INBOX} WHERE {_has_expired(dialect)} ORDER BY expires_at LIMIT %s",
        [limit],
    )
    if not found:
        return 0
    selected, params = dialect.id_in([key for (key,) in found], "inbox_key")
    return session.run(
        f"{dialect.delete_entries} WHERE {selected} AND {_has_expired(dialect)}", params
    )


def _has_expired(dialect: Dialect) -> str:
    return f"expires_at < {dialect.now}"


def _published_before(dialect: Dialect) -> str:
    return f"{PUBLISHED.text} AND published_at < {dialect.from_now}"


def _matching(dialect: Dialect, which: DeadLetters) -> tuple[str, list[Any]]:
    """The condition behind a `DeadLetters`, and its parameters."""
    conditions: list[str] = []
    params: list[Any] = []
    if which.ids is not None:
        selected, params = dialect.id_in(which.ids) if which.ids else ("1 = 0", [])
        conditions.append(selected)
    if which.task_name is not None:
        conditions.append(dialect.task_name_matches)
        params.append(dialect.like_pattern(which.task_name))
    if which.older_than is not None:
        conditions.append(f"dead_at < {dialect.from_now}")
        params.append(-which.older_than)
    if which.newer_than is not None:
        conditions.append(f"dead_at >= {dialect.from_now}")
        params.append(-which.newer_than)
    if which.kind is not None:
        conditions.append(f"{KIND} = %s")
        params.append(which.kind)
    if which.destination is not None:
        conditions.append("destination = %s")
        params.append(which.destination)
    return " AND ".join(conditions) or "1 = 1", params


def _copy_to_outbox(session: Session, dialect: Dialect, ids: list[int]) -> None:
    """Back into the table that each came from. One with a key gets its former id: its place among
    the others."""
    for table, columns, condition in _REPLAYS:
        fresh = {"created_at": dialect.now, "retries": "0"}
        values = ", ".join(fresh.get(each, each) for each in columns.values())
        selected, params = dialect.id_in(ids)
        session.run(
            f"INSERT INTO {table} ({', '.join(columns)}, due_at)"
            f" SELECT {values}, {dialect.now} FROM {DEAD_LETTER}{dialect.primary_key_hint}"
            f" WHERE {selected} AND {condition} ORDER BY id",
            params,
        )


def _delete(
    session: Session, dialect: Dialect, table: str, ids: list[int], condition: str = ""
) -> int:
    if not ids:
        return 0
    sql, params = dialect.delete_by_id(table, ids)
    return session.run(f"{sql}{condition}", params)
