"""Counts and ages of rows, for metrics and operators, at a cost that a full table can't raise.

Every count reads at most a cap of rows along an index and then stops: it is exact below the cap and
"at least" above it, where PostgreSQL's own statistics give a better estimate. The gauges, `celery
outbox status` and the admin show the results.
"""

# ruff: noqa: S608  SQL text is joined from our own names; values are always parameters
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_outbox_steps.store import Sample, Stats
from django_integration.schema import DEAD_LETTER, FAILING, LEASED, OUTBOX, PENDING, PUBLISHED

if TYPE_CHECKING:
    from django_integration.schema import State
    from django_integration.store.dialect import Dialect
    from django_integration.store.session import Session

SAMPLE_CAP = 10_000
STATS_CAP = 100_000


def read_sample(session: Session, dialect: Dialect) -> Sample:
    """The three gauges, in three cheap statements."""
    depth, oldest = session.rows(
        f"SELECT count(*), max(waited) FROM ({_pending_rows(dialect)}) AS pending",
        [SAMPLE_CAP + 1],
    )[0]
    dead, _ = _count(session, DEAD_LETTER, "", SAMPLE_CAP)
    return Sample(_or_estimate(session, dialect, depth, SAMPLE_CAP), dead, _age(oldest))


def read_stats(session: Session, dialect: Dialect, top: int) -> Stats:
    """Everything that `celery outbox status` shows."""
    depth, oldest, in_flight = session.rows(
        f"SELECT count(*), max(waited), sum(leased) FROM ({_pending_rows(dialect)}) AS pending",
        [STATS_CAP + 1],
    )[0]
    failing, top_failing = _failing(session, dialect, top)
    dead, dead_capped = _count(session, DEAD_LETTER, "", STATS_CAP)
    kept, kept_capped = _count(session, OUTBOX, f"WHERE {PUBLISHED.text}", STATS_CAP)
    return Stats(
        depth=_or_estimate(session, dialect, depth, STATS_CAP),
        in_flight=int(in_flight or 0),
        failing=failing,
        dead_letters=dead,
        published=kept,
        oldest_pending_seconds=_age(oldest),
        capped=depth > STATS_CAP or dead_capped or kept_capped,
        relays=_relays(session, dialect),
        top_failing=top_failing,
    )


def _pending_rows(dialect: Dialect, order: str = "due_at, id") -> str:
    """The pending rows, the longest due first: one parameter, how many rows to read."""
    return (
        f"SELECT task_name, claimed_by, last_error, {dialect.seconds_waited} AS waited,"
        f" {dialect.seconds_left} AS seconds_left, {_flag(dialect, LEASED)} AS leased,"
        f" {_flag(dialect, FAILING)} AS failing FROM {OUTBOX}{dialect.due_index_hint}"
        f" WHERE {PENDING.text} ORDER BY {order} LIMIT %s"
    )


def _flag(dialect: Dialect, state: State) -> str:
    return f"CASE WHEN {dialect.is_state(state)} THEN 1 ELSE 0 END"


def _count(session: Session, table: str, where: str, cap: int) -> tuple[int, bool]:
    sql = f"SELECT count(*) FROM (SELECT 1 AS one FROM {table} {where} LIMIT %s) AS counted"
    found = session.rows(sql, [cap + 1])[0][0]
    return min(found, cap), found > cap


def _or_estimate(session: Session, dialect: Dialect, found: int, cap: int) -> int:
    """The count; above the cap the database's estimate, if it has one."""
    if found <= cap:
        return found
    estimate = session.rows(dialect.estimate_pending)[0][0] if dialect.estimate_pending else 0
    return max(cap, int(estimate))


def _relays(session: Session, dialect: Dialect) -> tuple[dict[str, Any], ...]:
    rows = session.rows(
        f"SELECT claimed_by, count(*), min(seconds_left) FROM ({_pending_rows(dialect)}) AS pending"
        " WHERE leased = 1 GROUP BY claimed_by ORDER BY 2 DESC, 1",
        [STATS_CAP],
    )
    return tuple(
        {"relay": relay, "rows": count, "seconds_left": float(left)} for relay, count, left in rows
    )


def _failing(
    session: Session, dialect: Dialect, top: int
) -> tuple[int, tuple[dict[str, Any], ...]]:
    """How many rows are failing, and the tasks with the most of them.

    Counted from the high end of the due index: failing rows back off, and a count from the low end
    might stop within a backlog of other rows.
    """
    rows = session.rows(
        "SELECT task_name, count(*), max(last_error), sum(count(*)) OVER ()"
        f" FROM ({_pending_rows(dialect, 'due_at DESC, id DESC')}) AS pending"
        " WHERE failing = 1 GROUP BY task_name ORDER BY 2 DESC, 1 LIMIT %s",
        [STATS_CAP, max(1, top)],
    )
    return int(rows[0][3]) if rows else 0, tuple(
        {"task_name": name, "rows": count, "last_error": error}
        for name, count, error, _ in rows[:top]
    )


def _age(seconds: Any) -> float:
    return 0.0 if seconds is None else max(0.0, float(seconds))


NEWEST = {
    OUTBOX: f"SELECT created_at, due_at FROM {OUTBOX} ORDER BY id DESC LIMIT %s",
    DEAD_LETTER: f"SELECT dead_at AS created_at, 0 AS due_at FROM {DEAD_LETTER}"
    " ORDER BY dead_at DESC LIMIT %s",
}


def count_newest(
    session: Session, dialect: Dialect, table: str, limit: int
) -> list[tuple[Any, ...]]:
    """The newest rows by age, for charts: minutes ago, whether published, how many rows.

    The age of a dead letter is the time since it died.
    """
    # Rounded half a minute down: floor() is missing from some builds of SQLite.
    return session.rows(
        f"SELECT ago, published, count(*) FROM (SELECT round({dialect.seconds_waited} / 60 - 0.5)"
        f" AS ago, {_flag(dialect, PUBLISHED)} AS published FROM ({NEWEST[table]}) AS newest)"
        " AS minutes GROUP BY ago, published",
        [limit],
    )
