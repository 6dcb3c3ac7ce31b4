"""The actions of the lists and of a row's own page: confirmed first, logged, in chunks.

A row that a relay holds is never touched: each chunk locks the rows that may still be changed, by
the database's clock, and a relay's claim skips locked rows. An action changes only rows that were
confirmed, even if more rows match by then, and commits together with its log entries. What there is
to do is in `operations.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import admin as django_admin
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.core.exceptions import SuspiciousOperation
from django.db import transaction
from django.template.response import TemplateResponse
from django.utils.dateparse import parse_datetime

from django_integration.admin.databases import databases_of
from django_integration.admin.order import MOST_BEHIND, count_behind
from django_integration.admin.paging import REACH
from django_integration.schema import DatabaseNow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from django.contrib.admin import ModelAdmin
    from django.db.models import QuerySet
    from django.http import HttpRequest

    from django_integration.admin.operations import Operation

CHUNK = 500
SHOWN = 10
"""Rows that the confirmation lists one by one."""


def action_for(operation: Operation) -> Callable[..., TemplateResponse | None]:
    """The operation as an action of a `ModelAdmin`, for those who may do it."""

    def action(
        admin: ModelAdmin[Any], request: HttpRequest, chosen: QuerySet[Any]
    ) -> TemplateResponse | None:
        return carry_out(admin, request, chosen, operation)

    action.__name__ = operation.action
    permission = "discard" if operation.destroys else "resend"
    return django_admin.action(action, description=operation.label, permissions=[permission])


def carry_out(
    admin: ModelAdmin[Any], request: HttpRequest, chosen: QuerySet[Any], operation: Operation
) -> TemplateResponse | None:
    """Ask for confirmation; once confirmed, apply the action and report how many rows changed."""
    if "confirmed" not in request.POST:
        return _confirmation_page(admin, request, chosen, operation)
    ids = _confirmed_ids(request)
    asked_at = _time_of_confirmation(request)
    done = sum(_process_chunk(admin, request, operation, chunk, asked_at) for chunk in _chunks(ids))
    _report(admin, request, operation, done, len(ids) - done)
    return None


def _confirmation_page(
    admin: ModelAdmin[Any], request: HttpRequest, chosen: QuerySet[Any], operation: Operation
) -> TemplateResponse:
    ids = list(chosen.values_list("pk", flat=True)[:REACH])
    rows, databases = admin.get_queryset(request), databases_of(request)
    ready = sum(
        operation.allowed(rows.filter(pk__in=chunk)).order_by().count() for chunk in _chunks(ids)
    )
    named = list(chosen.annotate(asked_at=DatabaseNow())[:SHOWN])
    allowed = set(operation.allowed(rows.filter(pk__in=[row.pk for row in named])))
    context = {
        **admin.admin_site.each_context(request),
        "title": operation.title,
        "opts": admin.opts,
        "media": admin.media,
        "operation": operation,
        "ready": ready,
        "behind": count_behind(admin.model, rows.db, ids) if operation.destroys else 0,
        "most_behind": MOST_BEHIND,
        "database": rows.db if databases.query else "",
        "list_query": f"?{urlencode(databases.query)}" if databases.query else "",
        "skipped": len(ids) - ready,
        "reached": len(ids) == REACH,
        "named": [(row, row in allowed) for row in named],
        "unnamed": max(0, len(ids) - SHOWN),
        "ids": ",".join(map(str, ids)),
        "asked_at": named[0].asked_at.isoformat() if named else "",
        "checkbox_name": ACTION_CHECKBOX_NAME,
        "first_id": ids[0] if ids else "",
    }
    request.current_app = admin.admin_site.name  # as Django's own views do
    return TemplateResponse(request, "admin/celery_outbox/confirm_action.html", context)


def _confirmed_ids(request: HttpRequest) -> list[int]:
    try:
        ids = [int(text) for text in request.POST.get("ids", "").split(",") if text]
    except ValueError:
        raise SuspiciousOperation("the confirmed ids are not numbers") from None
    return ids[:REACH]


def _time_of_confirmation(request: HttpRequest) -> datetime | None:
    try:
        return parse_datetime(request.POST.get("asked_at", ""))
    except ValueError:
        raise SuspiciousOperation("the time of the confirmation is none") from None


def _chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK))


def _process_chunk(
    admin: ModelAdmin[Any],
    request: HttpRequest,
    operation: Operation,
    ids: Sequence[int],
    asked_at: datetime | None,
) -> int:
    rows = operation.allowed(admin.get_queryset(request).filter(pk__in=ids))
    if asked_at is not None:  # a later one has taken the place of a call with the same key
        rows = rows.filter(created_at__lte=asked_at)
    rows = rows.only("task_id", "task_name")
    with transaction.atomic(using=rows.db):
        locked = list(rows.select_for_update(skip_locked=True).order_by("pk"))
        if locked:
            operation.apply(rows.db, admin.model, [row.pk for row in locked])
            _log(request, operation, locked)
    return len(locked)


def _log(request: HttpRequest, operation: Operation, rows: Sequence[Any]) -> None:
    content_type = get_content_type_for_model(rows[0])
    database = databases_of(request).query  # a row of another database may have the same id
    message = f"{operation.title}{f' ({rows[0]._state.db})' if database else ''}."
    LogEntry.objects.bulk_create(
        LogEntry(
            user_id=request.user.pk,
            content_type_id=content_type.pk,
            object_id=str(row.pk),
            object_repr=str(row)[:200],
            action_flag=operation.flag,
            change_message=message,
        )
        for row in rows
    )


def _report(
    admin: ModelAdmin[Any], request: HttpRequest, operation: Operation, done: int, left: int
) -> None:
    if done:
        admin.message_user(request, f"{operation.done}: {done:,}.", messages.SUCCESS)
    if left:
        text = f"Left alone: {left:,}. {operation.left_alone}"
        admin.message_user(request, text, messages.WARNING)
