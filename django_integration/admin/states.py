"""The states of an outbox row as a list shows them, and the index that each is found along.

What a state means in columns is said by `CeleryOutboxQuerySet`; here is only where its rows stand
in the due index, so that a list starts there and stops early. `with_state()` labels rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db.models import Case, CharField, Value, When

from django_integration.admin.paging import within_window
from django_integration.models import CeleryOutboxQuerySet, DatabaseNow

if TYPE_CHECKING:
    from collections.abc import Callable

Rows = CeleryOutboxQuerySet
NEWEST_FIRST = ("-id",)
NEXT_FIRST = ("due_at", "id")
LATEST_FIRST = ("-due_at", "-id")
LOOKED_AT = ("id", "task_name", "due_at", "claimed_until", "retries")
"""The columns that a condition of a list may be on."""


def _all(rows: Rows) -> Rows:
    return rows


def _until_now(rows: Rows) -> Rows:
    return rows.filter(due_at__lte=DatabaseNow())


def backing_off(rows: Rows) -> Rows:
    """Not due yet: after a failure, or while the broker was away."""
    return rows.filter(due_at__gt=DatabaseNow())


@dataclass(frozen=True)
class State:
    """One choice of the filter."""

    label: str
    rows: Callable[[Rows], Rows]
    """Exactly the rows in this state."""
    along: Callable[[Rows], Rows]
    """A range of an index that holds them, perhaps among others."""
    ordering: tuple[str, ...] = NEXT_FIRST
    indexed: bool = False
    """The range holds hardly anything else, so that no window is needed."""

    def apply(self, rows: Any, task_name: str = "") -> Any:
        """The rows in this state, and of this task if one is named."""
        matching = self.rows(rows)
        if task_name:
            matching = matching.filter(task_name=task_name)
        elif self.indexed:
            return matching
        columns = self.along(rows).order_by(*self.ordering).values(*LOOKED_AT)
        return within_window(columns, matching)


# In-flight rows were the longest due. Failing ones stand at the other end, or have just left it.
STATES = {
    "waiting": State("Waiting", Rows.due, _until_now, indexed=True),
    "in_flight": State("In flight", Rows.in_flight, Rows.pending),
    "backing_off": State("Backing off", backing_off, backing_off, indexed=True),
    "failing": State("Failing", Rows.failing, Rows.pending, LATEST_FIRST),
    "published": State("Published", Rows.published, Rows.published, LATEST_FIRST, indexed=True),
}
EVERY = State("All", _all, _all, NEWEST_FIRST, indexed=True)


def chosen(name: str | None) -> State:
    """The state that a query string names; all rows for none, and for a wrong one."""
    return STATES.get(name or "", EVERY)


def with_state(rows: Any) -> Any:
    """Each row with its `state`, by the database's clock."""
    return rows.annotate(
        state=Case(
            When(due_at__isnull=True, then=Value("published")),
            When(claimed_until__gte=DatabaseNow(), then=Value("in_flight")),
            When(due_at__gt=DatabaseNow(), then=Value("backing_off")),
            default=Value("waiting"),
            output_field=CharField(),
        )
    )
