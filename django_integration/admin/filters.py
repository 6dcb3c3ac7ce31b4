"""The filters beside a list: the state of a row, the kind of a dead letter, the name of a task.

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
from django.db.models import Q

from celery_outbox_steps.envelope import ascii_text
from celery_outbox_steps.store import KINDS, MESSAGE, TASK
from django_integration.admin import states
from django_integration.admin.paging import with_name, within_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.contrib.admin.views.main import ChangeList
    from django.db.models import QuerySet
    from django.http import HttpRequest

STATE = "state"
TASK_NAME = "task_name"
KIND = "kind"
DEAD_FILTERED = ("id", "task_name", "kind")
"""The columns that a list of dead letters may filter by."""
ROWS_FOR_SUGGESTIONS = 1_000
"""The newest rows, whose task names are suggested."""


class StateFilter(admin.SimpleListFilter):
    """Waiting, scheduled, in flight, backing off, failing, published."""

    title = "state"
    parameter_name = STATE

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, state.label) for name, state in states.STATES.items()]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        state = states.chosen(self.value())
        if request.GET.get(SEARCH_VAR):  # a task id finds its few rows by itself
            return queryset.filter(state.condition)
        return state.apply(queryset, as_stored(request.GET.get(TASK_NAME)))


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

    The task name, which comes next, keeps it within the window.
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
        if not name and request.GET.get(KIND) not in KINDS:
            return queryset
        every = queryset.model._default_manager.using(queryset.db)
        newest = [every.order_by(*states.NEWEST_FIRST).values(*DEAD_FILTERED)]
        return with_name(newest, queryset, name) if name else within_window(newest, queryset)


def as_stored(name: str | None) -> str:
    """The name as the column holds it, in ASCII: a NUL in it is then no error."""
    return ascii_text(name or "").strip()
