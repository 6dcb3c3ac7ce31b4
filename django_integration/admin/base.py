"""What the pages share: read-only, redacted, and the permissions behind each action.

Nothing here can show an argument that the redactor hid: arguments come from `visible_args` and
`visible_kwargs`, options from `redaction.visible_options`, the payload is only measured, and the
query string can't filter by columns (`?kwargs__contains=...` would answer about hidden values).
"""

# ruff: noqa: ARG002  the signatures are Django's
from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.contrib.admin.utils import display_for_value
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_permission_codename
from django.db.models.functions import Length
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html
from django.utils.text import capfirst

from celery_outbox_steps.settings import load
from django_integration.admin.filters import KIND, STATE, TASK_NAME
from django_integration.admin.formatting import moment, preformatted
from django_integration.admin.paging import REACH, CappedPaginator, along_indexes
from django_integration.admin.summary import summary_for
from django_integration.conf import celery_app, django_settings
from django_integration.enqueue import redaction
from django_integration.store.postgresql import FOR_LIST
from django_integration.store.session import write_alias

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse

    from django_integration.models import StoredMessage

    Base = admin.ModelAdmin[Any]
else:
    Base = admin.ModelAdmin

UNREADABLE = "[not readable]"


class SlimChangeList(ChangeList):
    """A list that leaves the long texts in the database, and reads the rest along an index."""

    result_list: Any

    def get_results(self, request: HttpRequest) -> None:
        with along_indexes(self.root_queryset.db, FOR_LIST):
            super().get_results(request)
            len(self.result_list)  # reads the page now, not during rendering

    def get_queryset(self, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        listed: tuple[str, ...] = self.model_admin.listed  # type: ignore[attr-defined]
        return super().get_queryset(*args, **kwargs).only(*listed)


class ReadOnlyAdmin(Base):
    """No form for adding, changing or deleting a row. Reads the database that is written to."""

    show_full_result_count = False
    show_facets: ClassVar[Any] = getattr(
        getattr(admin, "ShowFacets", None), "NEVER", None
    )  # Django 5.0

    class Media:
        css = {"all": ("celery_outbox/admin.css",)}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = self.model._default_manager.using(write_alias())
        return rows


class StoredMessageAdmin(ReadOnlyAdmin):
    """A list of messages, with the summary above it. The two pages add their actions."""

    paginator = CappedPaginator
    list_per_page = 50
    list_max_show_all = 50
    search_fields = ("task_id",)
    search_help_text = "The exact id of a task."
    listed: tuple[str, ...] = ("task_id", "task_name", "created_at", "retries")

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
        return lookup in (STATE, TASK_NAME, KIND)

    def get_search_results(
        self,
        request: HttpRequest,
        queryset: QuerySet[Any],
        search_term: str,
    ) -> tuple[QuerySet[Any], bool]:
        # Exact, but not by Django's `=` prefix: that compares in upper case, which has no index. A
        # query of its own, because a planner may prefer to search in the list's order.
        term = search_term.strip()
        if not term:
            return queryset, False
        found = self.get_queryset(request).filter(task_id=term).order_by()
        ids = list(found.values_list("pk", flat=True)[:REACH])
        return queryset.filter(pk__in=ids), False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # A callable: it runs during rendering, which is after all permission checks.
        context = {
            "outbox_summary": lambda: summary_for(request, self.admin_site),
            "title": capfirst(self.opts.verbose_name_plural),
        }
        return super().changelist_view(request, {**context, **(extra_context or {})})

    # -- what a row shows ------------------------------------------------------------------------

    @admin.display(description="Task")
    def task(self, row: StoredMessage) -> str:
        return format_html(
            '<span class="outbox-task">{}</span> <span class="outbox-quiet">{}</span>',
            row.task_name,
            row.task_id,
        )

    @admin.display(description="Created")
    def created(self, row: StoredMessage) -> str:
        return moment(row.created_at)

    @admin.display(description="Wanted at")
    def wanted_at(self, row: StoredMessage) -> str:
        """The time that the call asked for; it moves if the call is sent now or rescheduled."""
        return str(display_for_value(row.eta, "-"))

    @admin.display(description="Failed attempts")
    def attempts(self, row: StoredMessage) -> int:
        return row.retries

    @admin.display(description="Arguments")
    def shown_args(self, row: StoredMessage) -> str:
        return preformatted(row.visible_args)

    @admin.display(description="Keyword arguments")
    def shown_kwargs(self, row: StoredMessage) -> str:
        return preformatted(row.visible_kwargs)

    @admin.display(description="Message")
    def shown_options(self, row: StoredMessage) -> str:
        try:
            options = redaction.visible_options(row.options, _redactor())
        except (ValueError, TypeError, AttributeError):
            return UNREADABLE
        return preformatted(json.dumps(options, indent=2, default=str))

    @admin.display(description="Payload")
    def payload_size(self, row: StoredMessage) -> str:
        """Measured by the database: the bytes themselves are not fetched."""
        manager = type(row)._default_manager.using(row._state.db)
        size = manager.filter(pk=row.pk).values_list(Length("payload"), flat=True).first()
        return "none: the message is plain JSON" if size is None else filesizeformat(size)

    @admin.display(description="Structlog context")
    def shown_context(self, row: StoredMessage) -> str:
        return preformatted(row.structlog_context or "")


def _redactor() -> redaction.Redactor | None:
    """The app's redactor; one that hides everything if the real one can't be loaded."""
    try:
        conf = {**django_settings(), **celery_app().conf}
        found: redaction.Redactor | None = load(conf, "redactor")
    except Exception:  # noqa: BLE001  a broken setting must not reveal what it should hide
        return _hide
    return found


def _hide(task_name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:  # noqa: ARG001
    raise LookupError("the redactor could not be imported")
