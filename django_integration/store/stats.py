"""Counts and ages of rows, for metrics and operators, at a cost that a full table can't raise.

Every count reads at most a cap of rows along an index and then stops: it is exact below the cap and
"at least" above it, where PostgreSQL's own statistics give a better estimate. The gauges, `celery
outbox status` and the admin show the results.
"""

# ruff: noqa: S608  SQL text is joined from our own names; values are always parameters
from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_outbox_steps.store import TASK, Sample, Stats
from django_integration.schema import (
    DEAD_LETTER,
    DELIVERIES,
    DELIVERY,
    DUE_TIME_AHEAD,
    DUE_TIME_REACHED,
    FAILING,
    HELD_BACK,
    LEASED,
    OUTBOX,
    OWN_BROKER,
    PENDING,
    POSTPONED,
    PUBLISHED,
    RATE,
    SCHEDULED,
    TASKS,
    UNLEASED,
    Lane,
)

if TYPE_CHECKING:
    from django_integration.schema import State
    from django_integration.store.dialect import Dialect
    from django_integration.store.session import Session

SAMPLE_CAP = 10_000
STATS_CAP = 100_000
MOST_DESTINATIONS = 100
STATEMENT_JITTER = 0.01
"""Seconds. A statement may take so much longer than the one before it to reach the database."""


def read_sample(session: Session, dialect: Dialect, lane: Lane = OWN_BROKER) -> Sample:
    """The gauges, in three cheap statements; one more for a destination."""
    due = _read_part(session, dialect, lane, DUE_TIME_REACHED, SAMPLE_CAP)
    ahead = _read_part(session, dialect, lane, DUE_TIME_AHEAD, SAMPLE_CAP)
    dead, failed_tasks, _ = _count_dead(session, lane, SAMPLE_CAP)
    held_back, _ = _count_held_back(session, dialect, lane, SAMPLE_CAP)
    return Sample(
        **_by_state(due, ahead),
        depth=due.late + due.uncounted + ahead.late,
        dead_letters=dead,
        failed_tasks=failed_tasks,
        oldest_pending_seconds=max(due.age, ahead.age),
        oldest_due_seconds=due.oldest,
        held_back=held_back,
    )


def seconds_until_next(
    session: Session, dialect: Dialect, since: float, lane: Lane = OWN_BROKER
) -> float | None:
    """The time until the next row is due that no relay holds; None if there is none.

    Rows that have fallen due in the last `since` seconds count: 0 or less.
    """
    params = [*lane.params, -(since + STATEMENT_JITTER)]
    found = session.rows(next_due_statement(dialect, lane), params)
    return float(found[0][0]) if found else None


def next_due_statement(dialect: Dialect, lane: Lane = OWN_BROKER) -> str:
    return (
        f"SELECT {dialect.seconds_until.format('due_at')} FROM {dialect.along_due(lane.table)}"
        f" WHERE {lane.rows}due_at > {dialect.from_now} AND {dialect.is_state(UNLEASED)}"
        " ORDER BY due_at, id LIMIT 1"
    )


def read_stats(session: Session, dialect: Dialect, top: int, lane: Lane = OWN_BROKER) -> Stats:
    """Everything that `celery outbox status` shows of one lane."""
    due = _read_part(session, dialect, lane, DUE_TIME_REACHED, STATS_CAP)
    ahead = _read_part(session, dialect, lane, DUE_TIME_AHEAD, STATS_CAP)
    failing, top_failing = _failing(session, dialect, lane, top)
    dead, failed_tasks, dead_capped = _count_dead(session, lane, STATS_CAP)
    held_back, held_capped = _count_held_back(session, dialect, lane, STATS_CAP)
    kept, kept_capped = _count(
        session, f"{lane.table.name} WHERE {lane.rows}{PUBLISHED.text}", lane.params, STATS_CAP
    )
    return Stats(
        **_by_state(due, ahead),
        failing=failing,
        dead_letters=dead,
        failed_tasks=failed_tasks,
        published=kept,
        oldest_due_seconds=due.oldest,
        capped=due.capped or ahead.capped or dead_capped or kept_capped or held_capped,
        holders=_holders(session, dialect, lane),
        top_failing=top_failing,
        held_back=held_back,
    )


def stored_destinations(session: Session, dialect: Dialect) -> list[str]:
    """The destinations that messages are stored for: from one to the next along the index."""
    found: list[str] = []
    table = dialect.along_due(DELIVERIES)
    while len(found) < MOST_DESTINATIONS:
        after = found[-1:] or [""]
        rows = session.rows(
            f"SELECT destination FROM {table} WHERE destination > %s ORDER BY destination LIMIT 1",
            after,
        )
        if not rows:
            break
        found.append(rows[0][0])
    return found


def read_rates(session: Session, dialect: Dialect) -> dict[str, float]:
    """By the pattern of a release rate: for how many seconds waiting messages have turns."""
    until = dialect.seconds_until.format("planned_until")
    found = session.rows(f"SELECT name, {until} FROM {RATE} ORDER BY name")
    return {name: max(0.0, float(seconds)) for name, seconds in found}


class Part(NamedTuple):
    """The counts of one part of the due index: what is due, or what is due later."""

    unleased: int
    leased: int
    postponed: int
    """Of the unleased ones."""
    late: int
    """The backlog: what is due, or was attempted."""
    oldest: float
    """The longest time that a row has been due."""
    age: float
    """The same of the backlog, from the time at which a row was due first."""
    capped: bool
    uncounted: int
    """Beyond the cap, by the database's estimate."""


def _read_part(session: Session, dialect: Dialect, lane: Lane, part: State, cap: int) -> Part:
    """Counted apart from the other part: many scheduled rows can't hide a backlog, or be hidden."""
    rows, leased, postponed, late, oldest, age = session.rows(
        "SELECT count(*), sum(leased), sum(postponed), sum(late), max(overdue),"
        " max(CASE WHEN late = 1 THEN age END) FROM ("
        f"SELECT {_flag(dialect, LEASED)} AS leased,"
        f" {_flag(dialect, UNLEASED & POSTPONED)} AS postponed,"
        f" CASE WHEN {dialect.is_state(DUE_TIME_REACHED)} OR {dialect.is_state(POSTPONED)}"
        " THEN 1 ELSE 0 END AS late,"
        f" -({dialect.seconds_until.format('due_at')}) AS overdue,"
        f" {dialect.seconds_waited} - {dialect.seconds_held} AS age"
        f" FROM {dialect.along_due(lane.table)} WHERE {lane.rows}{dialect.is_state(part)}"
        " ORDER BY due_at, id LIMIT %s) AS part",
        [*lane.params, cap + 1],
    )[0]
    counted, leased = min(rows, cap), int(leased or 0)
    estimated = planned_rows(session, dialect, lane, part) if rows > cap else 0
    return Part(
        unleased=max(0, counted - leased),
        leased=leased,
        postponed=int(postponed or 0),
        late=min(int(late or 0), cap),
        oldest=_age(oldest),
        age=_age(age),
        capped=rows > cap,
        uncounted=max(0, estimated - counted),
    )


def _by_state(due: Part, ahead: Part) -> dict[str, int]:
    """The rows in each state. Those beyond a cap are taken for what most of the others are."""
    counts = {
        "waiting": due.unleased + due.uncounted,
        "scheduled": max(0, ahead.unleased - ahead.postponed),
        "in_flight": due.leased + ahead.leased,
        "backing_off": ahead.postponed,
    }
    later = "backing_off" if counts["backing_off"] > counts["scheduled"] else "scheduled"
    counts[later] += ahead.uncounted
    return counts


def _rows_of(dialect: Dialect, lane: Lane, part: State, order: str = "due_at, id") -> str:
    """The rows of one part of the due index: parameters are the lane's, and how many to read."""
    return (
        f"SELECT task_name, claimed_by, last_error,"
        f" {dialect.seconds_until.format('claimed_until')} AS seconds_left,"
        f" {_flag(dialect, LEASED)} AS leased,"
        f" {_flag(dialect, FAILING)} AS failing FROM {dialect.along_due(lane.table)}"
        f" WHERE {lane.rows}{dialect.is_state(part)} ORDER BY {order} LIMIT %s"
    )


def _flag(dialect: Dialect, state: State) -> str:
    return f"CASE WHEN {dialect.is_state(state)} THEN 1 ELSE 0 END"


def _count(session: Session, rows: str, params: list[Any], cap: int) -> tuple[int, bool]:
    sql = f"SELECT count(*) FROM (SELECT 1 AS one FROM {rows} LIMIT %s) AS counted"
    found = session.rows(sql, [*params, cap + 1])[0][0]
    return min(found, cap), found > cap


def _count_held_back(session: Session, dialect: Dialect, lane: Lane, cap: int) -> tuple[int, bool]:
    """Messages that wait for another one of their key: only those for destinations can."""
    if lane.destination is None:
        return 0, False
    held_back = f"{dialect.along_due(lane.table)} WHERE {lane.rows}{dialect.is_state(HELD_BACK)}"
    return _count(session, held_back, lane.params, cap)


def _count_dead(session: Session, lane: Lane, cap: int) -> tuple[int, int, bool]:
    """The dead letters of the lane, and the failed tasks, among the newest of all."""
    of_lane = "destination IS NULL" if lane.destination is None else "destination = %s"
    read, found, tasks = session.rows(
        "SELECT count(*), sum(own), sum(own * failed) FROM ("
        f"SELECT CASE WHEN {of_lane} THEN 1 ELSE 0 END AS own,"
        f" CASE WHEN kind = '{TASK}' THEN 1 ELSE 0 END AS failed FROM {DEAD_LETTER}"
        " ORDER BY id DESC LIMIT %s) AS newest",
        [*lane.params, cap + 1],
    )[0]
    return min(int(found or 0), cap), min(int(tasks or 0), cap), read > cap


def planned_rows(session: Session, dialect: Dialect, lane: Lane, part: State) -> int:
    """The number of rows that the database's planner expects; 0 if it does not tell."""
    if not dialect.explain:
        return 0
    (found,) = session.rows(
        f"{dialect.explain} SELECT id FROM {lane.table.name}"
        f" WHERE {lane.rows}{dialect.is_state(part)}",
        lane.params,
    )[0]
    plan = json.loads(found) if isinstance(found, str) else found
    return int(plan[0]["Plan"]["Plan Rows"])


def _holders(session: Session, dialect: Dialect, lane: Lane) -> tuple[dict[str, Any], ...]:
    rows = session.rows(
        "SELECT claimed_by, count(*), min(seconds_left)"
        f" FROM ({_rows_of(dialect, lane, PENDING)}) AS pending WHERE leased = 1"
        " GROUP BY claimed_by ORDER BY 2 DESC, 1",
        [*lane.params, STATS_CAP],
    )
    return tuple(
        {"relay": relay, "rows": count, "seconds_left": float(left)} for relay, count, left in rows
    )


def _failing(
    session: Session, dialect: Dialect, lane: Lane, top: int
) -> tuple[int, tuple[dict[str, Any], ...]]:
    """How many rows are failing, and the tasks with the most of them.

    Counted from now on in both directions of the due index: failing rows back off, and are due
    again soon. From either end, a backlog or what is scheduled could hide them.
    """
    latest_due = _rows_of(dialect, lane, DUE_TIME_REACHED, "due_at DESC, id DESC")
    next_due = _rows_of(dialect, lane, DUE_TIME_AHEAD)
    part = [*lane.params, STATS_CAP // 2]
    rows = session.rows(
        "SELECT task_name, count(*), max(last_error), sum(count(*)) OVER () FROM ("
        f"SELECT * FROM ({latest_due}) AS due UNION ALL SELECT * FROM ({next_due}) AS ahead"
        ") AS pending WHERE failing = 1 GROUP BY task_name ORDER BY 2 DESC, 1 LIMIT %s",
        [*part, *part, max(1, top)],
    )
    return int(rows[0][3]) if rows else 0, tuple(
        {"task_name": name, "rows": count, "last_error": error}
        for name, count, error, _ in rows[:top]
    )


def _age(seconds: Any) -> float:
    return 0.0 if seconds is None else max(0.0, float(seconds))


NEWEST = {
    OUTBOX: f"SELECT created_at, due_at FROM {OUTBOX} ORDER BY id DESC LIMIT %s",
    DELIVERY: f"SELECT created_at, due_at FROM {DELIVERY} ORDER BY id DESC LIMIT %s",
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


def count_next(
    session: Session, dialect: Dialect, within: float, limit: int
) -> list[tuple[Any, ...]]:
    """The rows that are due next, for charts: in how many minutes, whether scheduled, how many.

    Reads the rows that are due within this time, in seconds, and at most `limit` of them. Those
    that are not scheduled are counted too: the sum says whether the limit was reached.
    """
    until = dialect.seconds_until.format("due_at")
    return session.rows(
        f"SELECT ahead, scheduled, count(*) FROM (SELECT round({until} / 60 - 0.5) AS ahead,"
        f" {_flag(dialect, SCHEDULED)} AS scheduled FROM {dialect.along_due(TASKS)}"
        f" WHERE {dialect.is_state(DUE_TIME_AHEAD)} AND due_at < {dialect.from_now}"
        " ORDER BY due_at, id LIMIT %s) AS minutes GROUP BY ahead, scheduled",
        [within, limit],
    )
