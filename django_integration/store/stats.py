"""Counts and ages of rows, for metrics and operators, at a cost that a full table can't raise.

Every count reads at most a cap of rows along an index and then stops: it is exact below the cap and
"at least" above it, where PostgreSQL's own statistics give a better estimate. The gauges, `celery
outbox status` and the admin show the results.
"""

# ruff: noqa: S608  SQL text is joined from our own names; values are always parameters
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from celery_outbox_steps.store import Sample, Stats
from django_integration.schema import (
    ATTEMPTED,
    DEAD_LETTER,
    DUE_TIME_AHEAD,
    DUE_TIME_REACHED,
    FAILING,
    LEASED,
    OUTBOX,
    PENDING,
    PUBLISHED,
    UNLEASED,
)

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
    due = _read_part(session, dialect, DUE_TIME_REACHED)
    ahead = _read_part(session, dialect, DUE_TIME_AHEAD)
    failing, top_failing = _failing(session, dialect, top)
    dead, dead_capped = _count(session, DEAD_LETTER, "", STATS_CAP)
    kept, kept_capped = _count(session, OUTBOX, f"WHERE {PUBLISHED.text}", STATS_CAP)
    return Stats(
        **_by_state(session, dialect, due, ahead),
        failing=failing,
        dead_letters=dead,
        published=kept,
        oldest_due_seconds=due.oldest,
        capped=due.capped or ahead.capped or dead_capped or kept_capped,
        holders=_holders(session, dialect),
        top_failing=top_failing,
    )


class Part(NamedTuple):
    """The counts of one part of the due index: what is due, or what is due later."""

    unleased: int
    leased: int
    attempted: int
    """Of the unleased ones."""
    oldest: float
    capped: bool


def _read_part(session: Session, dialect: Dialect, part: State) -> Part:
    """Counted apart from the other part: many scheduled rows can't hide a backlog, or be hidden."""
    rows, leased, attempted, oldest = session.rows(
        "SELECT count(*), sum(leased), sum(attempted), max(overdue) FROM ("
        f"SELECT {_flag(dialect, LEASED)} AS leased,"
        f" {_flag(dialect, UNLEASED & ATTEMPTED)} AS attempted,"
        f" -({dialect.seconds_until.format('due_at')}) AS overdue"
        f" FROM {OUTBOX}{dialect.due_index_hint} WHERE {dialect.is_state(part)}"
        " ORDER BY due_at, id LIMIT %s) AS part",
        [STATS_CAP + 1],
    )[0]
    held = int(leased or 0)
    return Part(
        unleased=max(0, min(rows, STATS_CAP) - held),
        leased=held,
        attempted=int(attempted or 0),
        oldest=_age(oldest),
        capped=rows > STATS_CAP,
    )


def _by_state(session: Session, dialect: Dialect, due: Part, ahead: Part) -> dict[str, int]:
    """The rows in each state. Those beyond a cap are counted by the database's estimate, if any."""
    counts = {
        "waiting": due.unleased,
        "scheduled": max(0, ahead.unleased - ahead.attempted),
        "in_flight": due.leased + ahead.leased,
        "backing_off": ahead.attempted,
    }
    if due.capped or ahead.capped:
        later = "backing_off" if counts["backing_off"] > counts["scheduled"] else "scheduled"
        rest = _estimated_pending(session, dialect) - sum(counts.values())
        counts["waiting" if due.capped else later] += max(0, rest)
    return counts


def _pending_rows(dialect: Dialect, order: str = "due_at, id") -> str:
    """The pending rows, the longest due first: one parameter, how many rows to read."""
    return (
        f"SELECT task_name, claimed_by, last_error, {dialect.seconds_waited} AS waited,"
        f" {dialect.seconds_until.format('claimed_until')} AS seconds_left,"
        f" {_flag(dialect, LEASED)} AS leased,"
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
    return found if found <= cap else max(cap, _estimated_pending(session, dialect))


def _estimated_pending(session: Session, dialect: Dialect) -> int:
    return int(session.rows(dialect.estimate_pending)[0][0]) if dialect.estimate_pending else 0


def _holders(session: Session, dialect: Dialect) -> tuple[dict[str, Any], ...]:
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
