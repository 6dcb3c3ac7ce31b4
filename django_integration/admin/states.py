"""The states of a message as a list shows them, and the index that each is found along.

`schema.py` defines each state by columns; this module only adds where its rows are in the due
index, so that a list starts there and stops early. The index of messages for destinations begins
with the destination: there a state is found in one of these *lanes* after the other. `with_state()`
labels rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db.models import Case, CharField, Q, Value, When

from django_integration import schema
from django_integration.admin.paging import with_name, within_window

if TYPE_CHECKING:
    from collections.abc import Sequence

NEWEST_FIRST = ("-id",)
NEXT_FIRST = ("due_at", "id")
LATEST_FIRST = ("-due_at", "-id")
FILTERED = ("id", "task_name", "due_at", "claimed_until", "updated_at", "eta", "retries")
"""The columns that a list may filter by."""
WHOLE_TABLE = (Q(),)


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

    def apply(self, rows: Any, task_name: str = "", lanes: Sequence[Q] = WHOLE_TABLE) -> Any:
        """The rows in this state, and of this task if one is named.

        `lanes` are conditions, each of a part of the table that the index keeps together.
        """
        windows = [
            window
            for lane in lanes
            for window in self._windows(rows.filter(lane).values(*columns_of(rows.model)))
        ]
        in_lanes = rows.filter(lanes[0]) if len(lanes) == 1 else rows
        matching = in_lanes.filter(self.condition)
        if task_name:
            return with_name(windows, matching, rows, task_name)
        if self.indexed and len(lanes) == 1:
            return matching
        return within_window(windows, matching, rows)

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
        later_range=Q(due_at__gt=schema.DatabaseNow()),  # a held-back one may have failed before
    ),
    "held_back": ListedState(
        "Held back", schema.HELD_BACK.q, Q(due_at__gte=schema.HELD_BACK_UNTIL), indexed=True
    ),
    "published": ListedState(
        "Published", schema.PUBLISHED.q, schema.PUBLISHED.q, LATEST_FIRST, indexed=True
    ),
}
EVERY = ListedState("All", Q(), Q(), NEWEST_FIRST, indexed=True)
EVERY_OF_LANE = ListedState("All", Q(), Q(), indexed=True)
"""Of one destination: no index has its rows in the order of their ids."""
OF_TASKS = tuple(name for name in STATES if name != "held_back")
"""Those that a message for the app's own broker can be in."""


def columns_of(model: Any) -> tuple[str, ...]:
    """The columns that a list of these messages may filter by."""
    return (*FILTERED, "destination") if hasattr(model, "destination") else FILTERED


def chosen(name: str | None) -> ListedState:
    """The state that a query string names; `EVERY` if it names none, or one that does not exist."""
    return STATES.get(name or "", EVERY)


def with_state(rows: Any) -> Any:
    """Each row with its `state`, by the database's clock."""
    labels = [When(state.q, then=Value(name)) for name, state in schema.ROW_STATES.items()]
    return rows.annotate(state=Case(*labels, output_field=CharField()))
