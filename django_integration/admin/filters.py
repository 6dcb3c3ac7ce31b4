"""The filters beside a list: the destination and the state of a row, the kind of a dead letter, and
the name of a task.

The task name is typed, whole or in part, not chosen: a list of all names would read the whole
table. The browser suggests the names among the newest rows. No filter reads beyond the window of
`paging.py`.
"""

# ruff: noqa: ARG002  the signatures are Django's
from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from django.contrib import admin
from django.contrib.admin.views.main import PAGE_VAR, SEARCH_VAR
from django.db import connections
from django.db.models import Q

from celery_outbox_steps.envelope import ascii_text
from celery_outbox_steps.store import KINDS, MESSAGE, TASK
from django_integration.admin import configuration, states
from django_integration.admin.databases import alias_of
from django_integration.admin.formatting import one_line
from django_integration.admin.paging import along_indexes, with_name, within_window
from django_integration.store import DjangoStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.contrib.admin.views.main import ChangeList
    from django.db.models import QuerySet
    from django.http import HttpRequest

STATE = "state"
TASK_NAME = "task_name"
KIND = "kind"
DESTINATION = "destination"
OWN_BROKER = "-"
"""The choice of dead letters that were for no destination: no destination can have this name."""
DEAD_FILTERED = ("id", "task_name", "kind", "destination")
"""The columns that a list of dead letters may filter by."""
ROWS_FOR_SUGGESTIONS = 1_000
"""The newest rows, whose task names are suggested."""


class StateFilter(admin.SimpleListFilter):
    """Waiting, scheduled, in flight, backing off, failing, published."""

    title = "state"
    parameter_name = STATE
    names = states.OF_TASKS

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, states.STATES[name].label) for name in self.names]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        state = self.state_of(request)
        if request.GET.get(SEARCH_VAR):  # a task id finds its few rows by itself
            return queryset.filter(state.condition)
        name = as_stored(request.GET.get(TASK_NAME))
        return state.apply(queryset, name, self.lanes(request, state))

    @staticmethod
    def state_of(request: HttpRequest) -> states.ListedState:
        return states.chosen(request.GET.get(STATE))

    def lanes(self, request: HttpRequest, state: states.ListedState) -> Sequence[Q]:
        return states.WHOLE_TABLE


class DeliveryStateFilter(StateFilter):
    """The same of messages for destinations, and those that are held back.

    Without a chosen destination, a state is looked for in one destination after the other.
    """

    names = tuple(states.STATES)

    @staticmethod
    def state_of(request: HttpRequest) -> states.ListedState:
        found = StateFilter.state_of(request)
        is_every = found is states.EVERY and as_stored(request.GET.get(DESTINATION))
        return states.EVERY_OF_LANE if is_every else found

    def lanes(self, request: HttpRequest, state: states.ListedState) -> Sequence[Q]:
        chosen = as_stored(request.GET.get(DESTINATION))
        if state is states.EVERY:
            return states.WHOLE_TABLE
        return [Q(destination=name) for name in ([chosen] if chosen else destinations_of(request))]


class DestinationFilter(admin.SimpleListFilter):
    """One destination: a lane of the table. The state, which comes next, applies it."""

    title = "destination"
    parameter_name = DESTINATION

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        named = as_stored(request.GET.get(DESTINATION))
        names = {*destinations_of(request), *([named] if named else ())}
        return [(name, one_line(name)) for name in sorted(names)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        name = as_stored(self.value())
        searched = name and request.GET.get(SEARCH_VAR)  # within what the search finds
        return queryset.filter(destination=name) if searched else queryset


class DeadDestinationFilter(DestinationFilter):
    """One destination, or the app's own broker. Not shown if no message is for a destination.

    Those that are neither configured nor among the newest dead letters are not suggested.
    """

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        newest = model_admin.get_queryset(request).order_by("-id")
        found = set(newest.values_list("destination", flat=True)[:ROWS_FOR_SUGGESTIONS])
        named = as_stored(request.GET.get(DESTINATION))
        names = {*found, *configuration.destinations(), named} - {None, "", OWN_BROKER}
        choices = [(name, one_line(name)) for name in sorted(names)]
        return [(OWN_BROKER, "The app's own broker"), *choices] if choices else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == OWN_BROKER:
            return queryset.filter(destination__isnull=True)
        name = as_stored(self.value())
        return queryset.filter(destination=name) if name else queryset


class TaskNameFilter(admin.SimpleListFilter):
    """One task by its name, or all whose name has this in it. The state applies it, see there."""

    title = "task name"
    parameter_name = TASK_NAME
    template = "admin/celery_outbox/task_name_filter.html"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        newest = model_admin.get_queryset(request).order_by("-id")
        names = set(newest.values_list("task_name", flat=True)[:ROWS_FOR_SUGGESTIONS])
        # A filter without choices is not shown at all, so an empty table offers one empty name.
        return [(name, name) for name in sorted(names)] or [("", "")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        name = as_stored(self.value())
        searched = name and request.GET.get(SEARCH_VAR)  # within what the search finds
        return queryset.filter(task_name__icontains=name) if searched else queryset

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        others = changelist.get_query_string(remove=[PAGE_VAR, TASK_NAME])
        yield {
            "value": self.value() or "",
            "names": [name for name, _ in self.lookup_choices if name],
            "hidden": parse_qsl(others.removeprefix("?")),
            "clear": changelist.get_query_string(remove=[PAGE_VAR, TASK_NAME]),
        }


class KindFilter(admin.SimpleListFilter):
    """Messages that could not be published, or tasks that failed.

    The task name, which comes last, keeps it within the window.
    """

    title = "kind"
    parameter_name = KIND
    conditions = {
        MESSAGE: Q(kind=MESSAGE) | Q(kind__isnull=True),  # earlier releases leave it empty
        TASK: Q(kind=TASK),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(MESSAGE, "Message not published"), (TASK, "Task failed")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(self.conditions.get(self.value() or "", Q()))


class DeadTaskNameFilter(TaskNameFilter):
    """The last filter of the dead letters, which have no states: it sets the window."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if request.GET.get(SEARCH_VAR):
            return super().queryset(request, queryset)
        name = as_stored(self.value())
        filtered = request.GET.get(KIND) in KINDS or as_stored(request.GET.get(DESTINATION))
        if not name and not filtered:
            return queryset
        every = queryset.model._default_manager.using(queryset.db)
        newest = [every.order_by(*states.NEWEST_FIRST).values(*DEAD_FILTERED)]
        if name:
            return with_name(newest, queryset, every, name)
        return within_window(newest, queryset, every)


def destinations_of(request: HttpRequest) -> list[str]:
    """The destinations that are configured, and those that messages are stored for: found once for
    each request."""
    known = vars(request)
    if "outbox_destinations" not in known:
        alias = alias_of(request)
        with along_indexes(alias):
            stored = DjangoStore(alias, connection=connections[alias]).destinations()
        known["outbox_destinations"] = sorted({*configuration.destinations(), *stored})
    found: list[str] = known["outbox_destinations"]
    return found


def as_stored(name: str | None) -> str:
    """The name as the column holds it, in ASCII: a NUL in it is then no error."""
    return ascii_text(name or "").strip()
