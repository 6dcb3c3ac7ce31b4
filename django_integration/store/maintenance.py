"""Replay and purge: what people and beat do with dead letters and kept rows, in chunks.

None of it touches a row that a relay could claim. Two processes may do the same at once: what one
has locked the other skips, so nothing is replayed twice.
"""

# ruff: noqa: S608  SQL text is joined from names of ours; values are always parameters
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_integration.store.dialect import DEAD_LETTER, OUTBOX, Dialect, content_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_outbox_steps.store import DeadLetters
    from django_integration.store.session import Session

PUBLISHED = "due_at IS NULL"


def count_dead_letters(session: Session, dialect: Dialect, which: DeadLetters) -> int:
    """How many dead letters are meant."""
    where, params = _chosen(dialect, which)
    return int(session.rows(f"SELECT count(*) FROM {DEAD_LETTER} WHERE {where}", params)[0][0])


def replay(session: Session, dialect: Dialect, which: DeadLetters, limit: int) -> int:
    """Move dead letters back into the outbox. A replayed row starts a new life, and ages anew."""
    where, params = _chosen(dialect, which)
    with session.transaction():
        found = session.rows(
            f"SELECT id FROM {DEAD_LETTER} WHERE {where} ORDER BY id LIMIT %s{dialect.skip_locked}",
            [*params, limit],
        )
        return _revive(session, dialect, [row[0] for row in found])


def purge_dead_letters(session: Session, dialect: Dialect, which: DeadLetters, limit: int) -> int:
    """Delete dead letters, the oldest first."""
    where, params = _chosen(dialect, which)
    found = session.rows(
        f"SELECT id FROM {DEAD_LETTER} WHERE {where} ORDER BY dead_at, id LIMIT %s",
        [*params, limit],
    )
    return _delete(session, dialect, DEAD_LETTER, [row[0] for row in found])


def count_published(session: Session, dialect: Dialect, older_than: float) -> int:
    """How many kept rows are old enough to go."""
    sql = f"SELECT count(*) FROM {OUTBOX} WHERE {_old(dialect)}"
    return int(session.rows(sql, [-older_than])[0][0])


def purge_published(session: Session, dialect: Dialect, older_than: float, limit: int) -> int:
    """Delete kept rows; along the due index, where they stand together."""
    found = session.rows(
        f"SELECT id FROM {OUTBOX}{dialect.hint} WHERE {_old(dialect)} ORDER BY due_at, id LIMIT %s",
        [-older_than, limit],
    )
    return _delete(session, dialect, OUTBOX, [row[0] for row in found], PUBLISHED)


def _old(dialect: Dialect) -> str:
    return f"{PUBLISHED} AND published_at < {dialect.later}"


def _chosen(dialect: Dialect, which: DeadLetters) -> tuple[str, list[Any]]:
    """The predicate behind a `DeadLetters`, and its parameters."""
    where, params = ("1 = 1", []) if which.ids is None else _ids(dialect, which.ids)
    name = None if which.task_name is None else dialect.pattern(which.task_name)
    for condition, value in (
        (dialect.named, name),
        (f"dead_at < {dialect.later}", _past(which.older_than)),
        (f"dead_at >= {dialect.later}", _past(which.newer_than)),
    ):
        if value is not None:
            where, params = f"{where} AND {condition}", [*params, value]
    return where, params


def _past(seconds: float | None) -> float | None:
    return None if seconds is None else -seconds


def _ids(dialect: Dialect, ids: Sequence[int]) -> tuple[str, list[Any]]:
    return dialect.ids(ids) if ids else ("1 = 0", [])


def _revive(session: Session, dialect: Dialect, ids: list[int]) -> int:
    if not ids:
        return 0
    fresh = {"created_at": dialect.now, "retries": "0"}
    columns = content_columns()
    values = ", ".join(fresh.get(name, name) for name in columns)
    which, params = dialect.ids(ids)
    session.run(
        f"INSERT INTO {OUTBOX} ({', '.join(columns)}, due_at)"
        f" SELECT {values}, {dialect.now} FROM {DEAD_LETTER}{dialect.by_id}"
        f" WHERE {which} ORDER BY id",
        params,
    )
    return _delete(session, dialect, DEAD_LETTER, ids)


def _delete(
    session: Session, dialect: Dialect, table: str, ids: list[int], still: str = "1 = 1"
) -> int:
    if not ids:
        return 0
    sql, params = dialect.delete(table, ids)
    return session.run(f"{sql} AND {still}", params)
