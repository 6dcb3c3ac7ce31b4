"""What the lists and the pages show of a message, for outbox messages and dead letters alike.

Nothing here can show an argument that the redactor hid: arguments come from `visible_args` and
`visible_kwargs`, options from `redaction.visible_options`, the payload is only measured. Texts are
shown as people write them (`formatting.py`); where a message goes is read by `routing.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models.functions import Length
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html

from celery_outbox_steps.settings import load
from django_integration.admin.formatting import exact_moment, moment, preformatted
from django_integration.admin.routing import NOT_A_MESSAGE, UNREADABLE, routing_of
from django_integration.conf import celery_app, django_settings
from django_integration.enqueue import redaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_integration.admin.routing import Routing
    from django_integration.models import StoredMessage

WHERE_IT_GOES = ("queue", "exchange", "routing_key", "priority", "expires")
ARGUMENTS: Any = ("Arguments", {"fields": ("shown_args", "shown_kwargs", "payload_size")})
CONTEXT: Any = (
    "Message and context",
    {"fields": ("shown_options", "schema_version", "sentry_trace_id", "shown_context")},
)
"""Parts of a page that both kinds of message have."""


def exact_time(column: str, description: str) -> Callable[[Any, Any], str]:
    """A column with a point in time, as a field with seconds and zone."""

    @admin.display(description=description)
    def shown(admin: Any, row: Any) -> str:  # noqa: ARG001
        return exact_moment(getattr(row, column))

    return shown


class MessageFields:
    """The fields of a `StoredMessage`."""

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

    created_exactly = exact_time("created_at", "Created at")

    @admin.display(description="Wanted at")
    def wanted_at(self, row: StoredMessage) -> str:
        """The time that the call asked for; it moves if the call is sent now or rescheduled."""
        return exact_moment(row.eta) if row.eta else _routing(row).eta

    @admin.display(description="Queue")
    def queue(self, row: StoredMessage) -> str:
        return _routing(row).queue

    @admin.display(description="Exchange")
    def exchange(self, row: StoredMessage) -> str:
        return _routing(row).exchange

    @admin.display(description="Routing key")
    def routing_key(self, row: StoredMessage) -> str:
        return _routing(row).routing_key

    @admin.display(description="Priority")
    def priority(self, row: StoredMessage) -> str:
        return _routing(row).priority

    @admin.display(description="Expires")
    def expires(self, row: StoredMessage) -> str:
        return _routing(row).expires

    @admin.display(description="Failed attempts")
    def attempts(self, row: StoredMessage) -> int:
        return row.retries

    @admin.display(description="Arguments")
    def shown_args(self, row: StoredMessage) -> str:
        return preformatted(row.visible_args, escaped=True)

    @admin.display(description="Keyword arguments")
    def shown_kwargs(self, row: StoredMessage) -> str:
        return preformatted(row.visible_kwargs, escaped=True)

    @admin.display(description="Message")
    def shown_options(self, row: StoredMessage) -> str:
        try:
            options = redaction.visible_options(row.options, _redactor())
        except NOT_A_MESSAGE:
            return UNREADABLE
        return preformatted(json.dumps(options, indent=2, default=str), escaped=True)

    @admin.display(description="Payload")
    def payload_size(self, row: StoredMessage) -> str:
        """Measured by the database: the bytes themselves are not fetched."""
        manager = type(row)._default_manager.using(row._state.db)
        size = manager.filter(pk=row.pk).values_list(Length("payload"), flat=True).first()
        return "none: the message is plain JSON" if size is None else filesizeformat(size)

    @admin.display(description="Structlog context")
    def shown_context(self, row: StoredMessage) -> str:
        return preformatted(row.structlog_context or "", escaped=True)


def _routing(row: Any) -> Routing:
    """Parsed once for all fields of a page."""
    if "routing" not in vars(row):
        row.routing = routing_of(row.options)
    found: Routing = row.routing
    return found


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
