"""What the pages share: read-only, with one search, one way to an action, and its permissions.

Nothing here can show an argument that the redactor hid: `fields.py` shows the redacted ones, and
the query string can't filter by columns (`?kwargs__contains=...` would answer about hidden values).
"""

# ruff: noqa: ARG002  the signatures are Django's
from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ERROR_FLAG, ChangeList
from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.http import HttpResponseRedirect
from django.urls import reverse
from django.utils.text import capfirst

from django_integration.admin.databases import (
    DATABASE,
    LIST_QUERY,
    alias_of,
    databases_of,
    switch,
)
from django_integration.admin.fields import MessageFields
from django_integration.admin.filters import DESTINATION, KIND, STATE, TASK_NAME, as_stored
from django_integration.admin.paging import (
    REACH,
    CappedPaginator,
    along_indexes,
    ids_within,
    order_of,
    rows_found,
)
from django_integration.admin.states import NEWEST_FIRST
from django_integration.store.postgresql import FOR_LIST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse

    from django_integration.admin.destinations import DestinationsSummary
    from django_integration.admin.operations import Operation
    from django_integration.admin.summary import Summary

    Base = admin.ModelAdmin[Any]
else:
    Base = admin.ModelAdmin


class OneDatabase(ChangeList):
    """A list of one database, whose links keep that choice."""

    result_list: Any
    chosen: dict[str, str]

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        self.chosen = databases_of(request).query
        super().__init__(request, *args, **kwargs)

    def get_filters_params(self, *args: Any) -> dict[str, Any]:
        found: dict[str, Any] = super().get_filters_params(*args)
        found.pop(DATABASE, None)
        return found

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        if self.chosen:  # otherwise Django links to all rows: those of the first database
            self.full_result_count = self.result_count

    def url_for_result(self, result: Any) -> str:
        url = super().url_for_result(result)
        return f"{url}?{urlencode(self.chosen)}" if self.chosen else url


class SlimChangeList(OneDatabase):
    """A list that leaves the long texts in the database, and reads the rest along an index."""

    def get_results(self, request: HttpRequest) -> None:
        admin: Any = self.model_admin
        with along_indexes(self.root_queryset.db, admin.planner):
            super().get_results(request)
            # Reads the page now, and not during rendering.
            admin.look_up(request, list(self.result_list))

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        return order_of(queryset, super().get_ordering(request, queryset))

    def get_queryset(self, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        listed: tuple[str, ...] = self.model_admin.listed  # type: ignore[attr-defined]
        return super().get_queryset(*args, **kwargs).only(*listed)


class ReadOnlyAdmin(Base):
    """No form for adding, changing or deleting a row. Reads the chosen database."""

    show_full_result_count = False
    show_facets: ClassVar[Any] = getattr(
        getattr(admin, "ShowFacets", None), "NEVER", None
    )  # Django 5.0

    class Media:
        css = {"all": ("celery_outbox/admin.css",)}
        js = ("celery_outbox/admin.js",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = self.model._default_manager.using(alias_of(request))
        return rows

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return OneDatabase

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # Callables: they run during rendering, which is after all permission checks.
        context = {
            "outbox_databases": lambda: switch(request),
            "title": capfirst(self.opts.verbose_name_plural),
        }
        page = super().changelist_view(request, {**context, **(extra_context or {})})
        query = databases_of(request).query
        if query and page.get("Location", "").endswith(f"?{ERROR_FLAG}=1"):  # a page too far
            page["Location"] += f"&{urlencode(query)}"
        return page

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        context = {"outbox_databases": lambda: switch(request, self.list_url())}
        return super().change_view(
            request, object_id, form_url, {**context, **(extra_context or {})}
        )

    def list_url(self, request: HttpRequest | None = None) -> str:
        """The list of these rows; with a request, of those in its database."""
        table = f"{self.opts.app_label}_{self.opts.model_name}"
        url = reverse(f"{self.admin_site.name}:{table}_changelist")
        query = databases_of(request).query if request else {}
        return f"{url}?{urlencode(query)}" if query else url

    def get_preserved_filters(self, request: HttpRequest) -> str:
        """What the links of a page keep: the list that it was opened from, or its database."""
        kept = super().get_preserved_filters(request)
        query = databases_of(request).query
        return kept or (urlencode({LIST_QUERY: urlencode(query)}) if query else "")


class StoredMessageAdmin(MessageFields, ReadOnlyAdmin):
    """A list of messages, and the page of one. The tables add their operations."""

    paginator = CappedPaginator
    list_per_page = 50
    list_max_show_all = 50
    search_fields = ("task_id", "task_name")
    search_help_text = "The id of a task, or a part of a task's name."
    listed: tuple[str, ...] = ("task_id", "task_name", "created_at", "retries")
    filtered: tuple[str, ...] = ("id", "task_name")
    """The columns that a list may filter by."""
    operations: tuple[Operation, ...] = ()
    planner = FOR_LIST
    """Settings of PostgreSQL's planner for the list."""

    # -- permissions -----------------------------------------------------------------------------

    def has_resend_permission(self, request: HttpRequest) -> bool:
        """Retry now, send now and replay: the model's change permission."""
        return self._may(request, "change")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """Discard and cancel: the model's delete permission."""
        return self._may(request, "delete")

    def _may(self, request: HttpRequest, verb: str) -> bool:
        name = f"{self.opts.app_label}.{get_permission_codename(verb, self.opts)}"
        return bool(request.user.has_perm(name))

    # -- queries of a list -----------------------------------------------------------------------

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("payload")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return SlimChangeList

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        return lookup in (STATE, TASK_NAME, KIND, DESTINATION)

    def get_search_results(
        self,
        request: HttpRequest,
        queryset: QuerySet[Any],
        search_term: str,
    ) -> tuple[QuerySet[Any], bool]:
        # Exact, but not by Django's `=` prefix: that compares in upper case, which has no index. A
        # query of its own, because a planner may prefer to search in the list's order.
        term = as_stored(search_term)
        if not term:
            return queryset, False
        rows = self.get_queryset(request)
        ids = list(rows.filter(task_id=term).order_by().values_list("pk", flat=True)[:REACH])
        if ids:
            return queryset.filter(pk__in=ids), False
        newest = rows.order_by(*NEWEST_FIRST).values(*self.filtered)
        ids = ids_within([newest], queryset.filter(task_name__icontains=term))
        found = rows_found(rows, ids)
        return found.order_by(*order_of(found, self.get_ordering(request))), False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {"outbox_summary": lambda: self.summary(request)}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    def summary(self, request: HttpRequest) -> Summary | DestinationsSummary | None:
        """What is above the list."""
        raise NotImplementedError

    def look_up(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        """Add to the rows of a page what other rows say about them."""

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        self.look_up(request, [] if row is None else [row])
        return row

    # -- the page of one row ---------------------------------------------------------------------

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        if request.method == "POST" and "action" in request.POST:
            return self._act_on_page(request, unquote(object_id))
        context = {"outbox_operations": lambda: self.possible(request, unquote(object_id))}
        return super().change_view(
            request, object_id, form_url, {**context, **(extra_context or {})}
        )

    def _act_on_page(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The same action as in the list, and the same confirmation, for this row alone."""
        row = self.get_object(request, object_id)
        offered: Any = self.get_actions(request)
        name = request.POST["action"]
        if name not in offered or not self.has_view_permission(request, row):
            raise PermissionDenied
        if request.POST.get("ids", "") not in ("", object_id):
            raise SuspiciousOperation("the confirmed ids are not those of this page")
        chosen = self.get_queryset(request).filter(pk__in=[] if row is None else [row.pk])
        page: HttpResponse | None = offered[name][0](self, request, chosen)
        if page is not None:
            return page
        if chosen.exists():
            return HttpResponseRedirect(request.get_full_path())
        return HttpResponseRedirect(self.list_url(request))

    def possible(self, request: HttpRequest, object_id: str) -> list[Operation]:
        """What can be done with this row now, by this user."""
        offered = self.get_actions(request)
        row = self.get_queryset(request).filter(pk=object_id)
        wanted = (each for each in self.operations if each.action in offered)
        return [each for each in wanted if each.allowed(row).exists()]
