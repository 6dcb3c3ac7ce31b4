"""The rows of a `MemoryStore`, and what their columns mean.

Pure: the time is an argument. The same states as on a database; `memory_store.py` changes the rows.
"""

from __future__ import annotations

import fnmatch
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from celery_outbox_steps.envelope import DELIVERY_VERSIONS, SUPPORTED_VERSIONS, size_of
from celery_outbox_steps.messages import ClaimedMessage, Outcome, Published
from celery_outbox_steps.store import (
    LONGEST_REASON,
    MESSAGE,
    ORPHANED,
    SHOWN,
    DeadLetter,
    ScheduledCall,
)

STATES = ("waiting", "scheduled", "in_flight", "backing_off", "held_back")


@dataclass(slots=True)
class MemoryRow:
    """One row of the outbox. Times are readings of the store's clock."""

    id: int
    created_at: float
    due_at: float | None
    task_name: str = "tests.task"
    task_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    args: str = "[]"
    kwargs: str = "{}"
    options: str = "{}"
    payload: bytes | None = None
    retries: int = 0
    schema_version: int = SUPPORTED_VERSIONS[-1]
    sentry_trace_id: str | None = None
    sentry_baggage: str | None = None
    structlog_context: str | None = None
    updated_at: float | None = None
    claimed_by: str | None = None
    claimed_until: float | None = None
    last_error: str | None = None
    published_at: float | None = None
    eta: float | None = None
    destination: str | None = None
    order_key: str | None = None
    paced: bool | None = None
    held_back: bool = False
    """A claim found that an earlier row of its key has to be published first."""


@dataclass(slots=True)
class MemoryDeadLetter:
    """A row that could not be published, or whose task failed, with the reason."""

    id: int
    row: MemoryRow
    dead_at: float
    failure_reason: str
    kind: str = MESSAGE


def is_due(row: MemoryRow, now: float) -> bool:
    known = row.schema_version in (
        SUPPORTED_VERSIONS if row.destination is None else DELIVERY_VERSIONS
    )
    return row.due_at is not None and row.due_at <= now and known


def is_free(row: MemoryRow, now: float, relay_id: str, *, adopt: bool, orphans: bool) -> bool:
    if row.claimed_until is None:
        return True
    if row.claimed_by == relay_id:
        return adopt or not is_leased(row, now)
    return orphans and not is_leased(row, now)


def is_leased(row: MemoryRow, now: float) -> bool:
    return row.claimed_until is not None and row.claimed_until >= now


def counted_by_state(pending: list[MemoryRow], now: float) -> dict[str, int]:
    counts = Counter(state_of(row, now) for row in pending)
    return {name: counts[name] for name in STATES}


def state_of(row: MemoryRow, now: float) -> str:
    if is_leased(row, now):
        return "in_flight"
    if row.held_back:
        return "held_back"
    if (row.due_at or now) <= now:
        return "waiting"
    wanted_later = row.updated_at is None or (row.eta or now) > now
    return "scheduled" if wanted_later else "backing_off"


def waits_for_turn(row: MemoryRow, now: float) -> bool:
    is_first = row.updated_at is None and not row.held_back
    return bool(row.paced) and is_first and not is_leased(row, now) and (row.due_at or now) > now


def seconds_overdue(pending: list[MemoryRow], now: float) -> float:
    """For how long the row that has been due longest has been due."""
    return max([0.0, *(now - (row.due_at or now) for row in pending if not row.held_back)])


def seconds_held(row: MemoryRow) -> float:
    return 0.0 if row.eta is None else max(0.0, row.eta - row.created_at)


def iso_text(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="microseconds")


def scheduled_call(row: MemoryRow, now: float) -> ScheduledCall:
    due_at = row.due_at or now
    shown = row.args[:SHOWN], row.kwargs[:SHOWN]
    when = iso_text(due_at), due_at - now
    return ScheduledCall(row.task_id, row.task_name, *when, *shown, row.destination)


def dead_letter(letter: MemoryDeadLetter, now: float) -> DeadLetter:
    row, reason = letter.row, letter.failure_reason[:LONGEST_REASON]
    when = iso_text(letter.dead_at), now - letter.dead_at
    return DeadLetter(
        letter.id,
        letter.kind,
        row.task_id,
        row.task_name,
        *when,
        row.retries,
        reason,
        row.destination,
    )


def matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def clear_lease(row: MemoryRow) -> None:
    row.claimed_by = row.claimed_until = None


def may_settle(row: MemoryRow, outcome: Outcome, relay_id: str) -> bool:
    """The fence. A published row is settled unless another relay holds it."""
    if isinstance(outcome, Published) and row.claimed_by in (None, ORPHANED):
        return row.due_at is not None
    return row.claimed_by == relay_id


def claimed_message(row: MemoryRow, now: float, relay_id: str, budget: int) -> ClaimedMessage:
    columns: dict[str, Any] = {name: getattr(row, name, None) for name in ClaimedMessage._fields}
    columns["eta"] = None if row.eta is None else iso_text(row.eta)
    columns["waited"] = now - row.created_at
    columns["held"] = seconds_held(row)
    columns["attempted"] = row.updated_at is not None
    columns["orphaned"] = row.claimed_by not in (None, relay_id)
    columns["oversized"] = size_of(row) > budget
    if columns["oversized"]:
        columns.update(args="", kwargs="", options="", payload=None)
    return ClaimedMessage(**columns)


def top_failing(rows: list[MemoryRow], top: int) -> tuple[dict[str, Any], ...]:
    errors = {row.task_name: row.last_error for row in rows}
    counts = Counter(row.task_name for row in rows)
    return tuple(
        {"task_name": name, "rows": count, "last_error": errors[name]}
        for name, count in counts.most_common(top)
    )
