"""How many rows, how old: for gauges and for people, at a cost that a full table can't raise.

Every count reads at most so many rows along the due index and then stops: it is exact below the
cap and "at least" above it, where PostgreSQL's own statistics give a better guess.
"""

# ruff: noqa: S608  SQL text is joined from names of ours; values are always parameters
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_outbox_steps.store import Sample, Stats
from django_integration.store.dialect import DEAD_LETTER, OUTBOX, Dialect

if TYPE_CHECKING:
    from django_integration.store.session import Session

SAMPLE_CAP = 10_000
STATS_CAP = 100_000


def sample(session: Session, dialect: Dialect) -> Sample:
    """The three gauges, in three cheap statements."""
    depth, oldest = session.rows(
        f"SELECT count(*), max(waited) FROM ({_pending(dialect)}) AS pending", [SAMPLE_CAP + 1]
    )[0]
    dead, _ = _count(session, DEAD_LETTER, "", SAMPLE_CAP)
    return Sample(_better(session, dialect, depth, SAMPLE_CAP), dead, _age(oldest))


def stats(session: Session, dialect: Dialect, top: int) -> Stats:
    """Everything that a person asks for."""
    depth, oldest, in_flight = session.rows(
        f"SELECT count(*), max(waited), sum(CASE WHEN seconds_left >= 0 THEN 1 ELSE 0 END)"
        f" FROM ({_pending(dialect)}) AS pending",
        [STATS_CAP + 1],
    )[0]
    failing, top_failing = _failing(session, dialect, top)
    dead, dead_capped = _count(session, DEAD_LETTER, "", STATS_CAP)
    kept, kept_capped = _count(session, OUTBOX, "WHERE due_at IS NULL", STATS_CAP)
    return Stats(
        depth=_better(session, dialect, depth, STATS_CAP),
        in_flight=int(in_flight or 0),
        failing=failing,
        dead_letters=dead,
        published=kept,
        oldest_pending_seconds=_age(oldest),
        capped=depth > STATS_CAP or dead_capped or kept_capped,
        relays=_relays(session, dialect),
        top_failing=top_failing,
    )


def _pending(dialect: Dialect, order: str = "due_at, id") -> str:
    """What waits, the longest due first: one parameter, how many rows to look at."""
    return (
        f"SELECT task_name, claimed_by, retries, last_error, {dialect.waited} AS waited,"
        f" {dialect.left} AS seconds_left FROM {OUTBOX}{dialect.hint}"
        f" WHERE due_at IS NOT NULL ORDER BY {order} LIMIT %s"
    )


def _count(session: Session, table: str, where: str, cap: int) -> tuple[int, bool]:
    sql = f"SELECT count(*) FROM (SELECT 1 AS one FROM {table} {where} LIMIT %s) AS counted"
    found = session.rows(sql, [cap + 1])[0][0]
    return min(found, cap), found > cap


def _better(session: Session, dialect: Dialect, found: int, cap: int) -> int:
    if found <= cap:
        return found
    guess = session.rows(dialect.estimate)[0][0] if dialect.estimate else 0
    return max(cap, int(guess))


def _relays(session: Session, dialect: Dialect) -> tuple[dict[str, Any], ...]:
    rows = session.rows(
        f"SELECT claimed_by, count(*), min(seconds_left) FROM ({_pending(dialect)}) AS pending"
        " WHERE seconds_left >= 0 GROUP BY claimed_by ORDER BY 2 DESC, 1",
        [STATS_CAP],
    )
    return tuple(
        {"relay": relay, "rows": count, "seconds_left": float(left)} for relay, count, left in rows
    )


def _failing(
    session: Session, dialect: Dialect, top: int
) -> tuple[int, tuple[dict[str, Any], ...]]:
    """How many rows are failing, and the tasks with most of them.

    From the far end of the due index: failing rows back off, and behind a backlog of others a look
    from the near end would not see one of them.
    """
    rows = session.rows(
        "SELECT task_name, count(*), max(last_error), sum(count(*)) OVER ()"
        f" FROM ({_pending(dialect, 'due_at DESC, id DESC')}) AS pending"
        " WHERE retries > 0 GROUP BY task_name ORDER BY 2 DESC, 1 LIMIT %s",
        [STATS_CAP, max(1, top)],
    )
    return int(rows[0][3]) if rows else 0, tuple(
        {"task_name": name, "rows": count, "last_error": error}
        for name, count, error, _ in rows[:top]
    )


def _age(seconds: Any) -> float:
    return 0.0 if seconds is None else max(0.0, float(seconds))
