"""The actions on rows, from retry now to cancel. Confirmed first, logged, in chunks.

A row that a relay holds is never touched: each chunk locks the rows that may still be changed, by
the database's clock, and a relay's claim skips locked rows. An action changes only rows that were
confirmed, even if more rows match by then, and commits together with its log entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.core.exceptions import SuspiciousOperation
from django.db import connections, transaction
from django.template.response import TemplateResponse

from celery_outbox_steps.store import DeadLetters
from django_integration import schema
from django_integration.admin.paging import REACH
from django_integration.models import CeleryOutbox, DatabaseNow
from django_integration.store import DjangoStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from django.contrib.admin import ModelAdmin
    from django.db.models import QuerySet
    from django.http import HttpRequest

CHUNK = 500
SHOWN = 10
"""Rows that the confirmation lists one by one."""


@dataclass(frozen=True)
class Operation:
    """One action and its texts."""

    action: str
    title: str
    explanation: str
    done: str
    left_alone: str
    flag: int
    allowed: Callable[[Any], Any]
    """Narrows the chosen rows to those that may be changed now."""
    apply: Callable[[str, type[Any], list[int]], None]
    """Changes locked rows: database alias, model, ids."""

    @property
    def destroys(self) -> bool:
        return self.flag == DELETION


def carry_out(
    admin: ModelAdmin[Any], request: HttpRequest, chosen: QuerySet[Any], operation: Operation
) -> TemplateResponse | None:
    """Ask for confirmation; once confirmed, apply the action and report how many rows changed."""
    if "confirmed" not in request.POST:
        return _confirmation_page(admin, request, chosen, operation)
    ids = _confirmed_ids(request)
    done = sum(_process_chunk(admin, request, operation, chunk) for chunk in _chunks(ids))
    _report(admin, request, operation, done, len(ids) - done)
    return None


def _confirmation_page(
    admin: ModelAdmin[Any], request: HttpRequest, chosen: QuerySet[Any], operation: Operation
) -> TemplateResponse:
    ids = list(chosen.values_list("pk", flat=True)[:REACH])
    rows = admin.get_queryset(request)
    ready = sum(
        operation.allowed(rows.filter(pk__in=chunk)).order_by().count() for chunk in _chunks(ids)
    )
    named = list(chosen[:SHOWN])
    allowed = set(operation.allowed(rows.filter(pk__in=[row.pk for row in named])))
    context = {
        **admin.admin_site.each_context(request),
        "title": operation.title,
        "opts": admin.opts,
        "media": admin.media,
        "operation": operation,
        "ready": ready,
        "skipped": len(ids) - ready,
        "reached": len(ids) == REACH,
        "named": [(row, row in allowed) for row in named],
        "unnamed": max(0, len(ids) - SHOWN),
        "ids": ",".join(map(str, ids)),
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


def _chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK))


def _process_chunk(
    admin: ModelAdmin[Any], request: HttpRequest, operation: Operation, ids: Sequence[int]
) -> int:
    rows = operation.allowed(admin.get_queryset(request).filter(pk__in=ids))
    rows = rows.only("task_id", "task_name")
    with transaction.atomic(using=rows.db):
        locked = list(rows.select_for_update(skip_locked=True).order_by("pk"))
        if locked:
            operation.apply(rows.db, admin.model, [row.pk for row in locked])
            _log(request, operation, locked)
    return len(locked)


def _log(request: HttpRequest, operation: Operation, rows: Sequence[Any]) -> None:
    content_type = get_content_type_for_model(rows[0])
    LogEntry.objects.bulk_create(
        LogEntry(
            user_id=request.user.pk,
            content_type_id=content_type.pk,
            object_id=str(row.pk),
            object_repr=str(row)[:200],
            action_flag=operation.flag,
            change_message=f"{operation.title}.",
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


def _make_due(alias: str, model: type[CeleryOutbox], ids: list[int]) -> None:
    model._default_manager.using(alias).filter(pk__in=ids).update(due_at=DatabaseNow())


def _send_now(alias: str, model: type[CeleryOutbox], ids: list[int]) -> None:  # noqa: ARG001
    DjangoStore(alias, connection=connections[alias]).make_due(ids)


def _replay(alias: str, model: type[Any], ids: list[int]) -> None:  # noqa: ARG001
    DjangoStore(alias, connection=connections[alias]).replay(DeadLetters(ids), len(ids))


def _delete(alias: str, model: type[Any], ids: list[int]) -> None:
    model._default_manager.using(alias).filter(pk__in=ids).delete()


# Failed attempts stay counted: a message that fails again uses up one more, and one that has none
# left becomes a dead letter, which can be replayed.
RETRY = Operation(
    action="retry_now",
    title="Retry now",
    explanation="These messages become due now, so the relay tries them at once. Failed attempts"
    " stay counted: a message with one attempt left becomes a dead letter if it fails again.",
    done="Due now",
    left_alone="They are in flight, already due, scheduled for later, or no longer in the outbox.",
    flag=CHANGE,
    allowed=lambda rows: rows.filter(schema.BACKING_OFF.q),
    apply=_make_due,
)
SEND_NOW = Operation(
    action="send_now",
    title="Send now",
    explanation="These scheduled messages become due now, so the relay publishes them at once"
    " instead of at their time.",
    done="Due now",
    left_alone="They are not scheduled, or no longer in the outbox.",
    flag=CHANGE,
    allowed=lambda rows: rows.filter(schema.SCHEDULED.q),
    apply=_send_now,
)
CANCEL = Operation(
    action="cancel",
    title="Cancel scheduled messages",
    explanation="These scheduled messages are deleted and will never be published. This can't be"
    " undone.",
    done="Cancelled",
    left_alone=SEND_NOW.left_alone,
    flag=DELETION,
    allowed=SEND_NOW.allowed,
    apply=_delete,
)
DISCARD = Operation(
    action="discard",
    title="Discard messages",
    explanation="These messages are deleted and will never be published. This can't be undone.",
    done="Discarded",
    left_alone="They are in flight, or no longer in the outbox.",
    flag=DELETION,
    allowed=lambda rows: rows.filter(schema.UNLEASED.q),
    apply=_delete,
)
REPLAY = Operation(
    action="replay",
    title="Replay dead letters",
    explanation="These messages go back into the outbox and are due now. Their failed attempts are"
    " reset to 0. A task that failed runs again, with the same id.",
    done="Back in the outbox",
    left_alone="They are no longer dead letters, or another user is replaying them.",
    flag=CHANGE,
    allowed=lambda rows: rows,
    apply=_replay,
)
DISCARD_DEAD = Operation(
    action="discard",
    title="Discard dead letters",
    explanation="These messages are deleted and can't be replayed any more. This can't be undone.",
    done="Discarded",
    left_alone="They are no longer dead letters, or another user is replaying them.",
    flag=DELETION,
    allowed=lambda rows: rows,
    apply=_delete,
)
