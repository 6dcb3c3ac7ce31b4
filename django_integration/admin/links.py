"""Links between the pages of the admin: only to pages that the user may see, in one database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib.admin.utils import quote
from django.urls import NoReverseMatch, reverse

from django_integration.admin.databases import databases_of
from django_integration.admin.filters import DESTINATION, STATE, TASK_NAME
from django_integration.models import (
    CeleryOutbox,
    CeleryOutboxDeadLetter,
    CeleryOutboxDelivery,
    CeleryOutboxRelay,
)
from django_integration.upstream.django import admin_of

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite
    from django.http import HttpRequest


class Links:
    """URLs within this admin site; empty ones for pages that the user may not see."""

    def __init__(self, request: HttpRequest, site: AdminSite) -> None:
        self._request = request
        self._site = site

    def outbox(self, state: str = "", task_name: str = "") -> str:
        return self._list(CeleryOutbox, {STATE: state, TASK_NAME: task_name})

    def deliveries(self, destination: str = "", state: str = "") -> str:
        return self._list(CeleryOutboxDelivery, {DESTINATION: destination, STATE: state})

    def dead_letters(self, destination: str = "") -> str:
        return self._list(CeleryOutboxDeadLetter, {DESTINATION: destination})

    def relays(self) -> str:
        return self._list(CeleryOutboxRelay, {})

    def message(self, model: type[Any], row_id: int) -> str:
        """The page of one row."""
        return self._url(model, "change", {}, quote(row_id))

    def _list(self, model: type[Any], query: dict[str, str]) -> str:
        return self._url(model, "changelist", query)

    def _url(self, model: type[Any], view: str, query: dict[str, str], *args: str) -> str:
        opts = model._meta
        page = admin_of(self._site, model)
        if page is None or not page.has_view_permission(self._request):
            return ""
        name = f"{self._site.name}:{opts.app_label}_{opts.model_name}_{view}"
        try:
            url = reverse(name, args=args)
        except NoReverseMatch:
            return ""
        query = {key: value for key, value in query.items() if value}
        query |= databases_of(self._request).query
        return f"{url}?{urlencode(query)}" if query else url
