"""The states of an outbox row as a list shows them, and the index that each is found along.

`schema.py` defines each state by columns; this module only adds where its rows are in the due
index, so that a list starts there and stops early. `with_state()` labels rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Case, CharField, Q, Value, When

from django_integration import schema
from django_integration.admin.paging import with_name, within_window

NEWEST_FIRST = ("-id",)
NEXT_FIRST = ("due_at", "id")
LATEST_FIRST = ("-due_at", "-id")
FILTERED = ("id", "task_name", "due_at", "claimed_until", "updated_at", "eta", "retries")
"""The columns that a list may filter by."""


@dataclass(frozen=True)
class ListedState:
    """One choice of the filter."""

    label: str
    condition: Q
    """True of exactly the rows in this state."""
    index_range: Q
    """A range of an index that holds them, perhaps among others."""
    ordering: tuple[str, ...] = NEXT_FIRST
    later_range: Q | None = None
    """A second range, behind the first one: both are read from where they meet."""
    indexed: bool = False
    """The range holds few other rows, so that no window is needed."""

    def apply(self, rows: Any, task_name: str = "") -> Any:
        """The rows in this state, and of this task if one is named."""
        matching = rows.filter(self.condition)
        windows = self._windows(rows.values(*FILTERED))
        if task_name:
            return with_name(windows, matching, task_name)
        return matching if self.indexed else within_window(windows, matching)

    def _windows(self, rows: Any) -> list[Any]:
        if self.later_range is None:
            return [rows.filter(self.index_range).order_by(*self.ordering)]
        return [
            rows.filter(self.index_range).order_by(*LATEST_FIRST),
            rows.filter(self.later_range).order_by(*NEXT_FIRST),
        ]


# In-flight rows are at the low end of the due index. Failing ones are due again soon, so they are
# on both sides of now: a backlog, or what is scheduled for later, must not hide them. Their list is
# in the order of the ids that were found: along the due index, a page would be read from the far
# end of what is scheduled.
STATES = {
    "waiting": ListedState("Waiting", schema.DUE.q, schema.DUE_TIME_REACHED.q, indexed=True),
    "scheduled": ListedState("Scheduled", schema.SCHEDULED.q, schema.DUE_TIME_AHEAD.q),
    "in_flight": ListedState("In flight", schema.IN_FLIGHT.q, schema.PENDING.q),
    "backing_off": ListedState("Backing off", schema.BACKING_OFF.q, schema.DUE_TIME_AHEAD.q),
    "failing": ListedState(
        "Failing",
        schema.FAILING.q,
        schema.DUE_TIME_REACHED.q,
        NEWEST_FIRST,
        later_range=schema.DUE_TIME_AHEAD.q,
    ),
    "published": ListedState(
        "Published", schema.PUBLISHED.q, schema.PUBLISHED.q, LATEST_FIRST, indexed=True
    ),
}
EVERY = ListedState("All", Q(), Q(), NEWEST_FIRST, indexed=True)


def chosen(name: str | None) -> ListedState:
    """The state that a query string names; `EVERY` if it names none, or one that does not exist."""
    return STATES.get(name or "", EVERY)


def with_state(rows: Any) -> Any:
    """Each row with its `state`, by the database's clock."""
    labels = [When(state.q, then=Value(name)) for name, state in schema.ROW_STATES.items()]
    return rows.annotate(state=Case(*labels, output_field=CharField()))
