"""What the lists and the pages show of a message, in all three tables of messages alike.

Nothing here can show an argument that the redactor hid: arguments come from `visible_args` and
`visible_kwargs`, options from `redaction.visible_options`, the payload is only measured. Texts are
shown as people write them (`formatting.py`). Where a message goes is read by `routing.py`, and of
an event by `events.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models.functions import Length
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html

from celery_outbox_steps.settings import load
from django_integration.admin import configuration
from django_integration.admin.events import event_of, is_event
from django_integration.admin.formatting import (
    MISSING,
    exact_moment,
    moment,
    one_line,
    preformatted,
    readable,
)
from django_integration.admin.routing import NOT_A_MESSAGE, UNREADABLE, routing_of
from django_integration.enqueue import redaction
from django_integration.keys import readable_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_integration.admin.events import SeenEvent
    from django_integration.admin.routing import Routing
    from django_integration.models import StoredMessage

NOT_CONFIGURED = "not configured any more: no relay publishes this message"
WHERE_IT_GOES = ("queue", "exchange", "routing_key", "priority", "expires")
ARGUMENTS: Any = ("Arguments", {"fields": ("shown_args", "shown_kwargs", "payload_size")})
CONTEXT: Any = (
    "Message and context",
    {"fields": ("shown_options", "schema_version", "sentry_trace_id", "shown_context")},
)
"""Parts of a page that messages for the app's own broker have."""
ROUTING_OF_EVENT = ("queue", "exchange", "routing_key")
EVENT: Any = ("Event", {"fields": ("shown_data", "payload_size", "attributes", "shown_headers")})


def where_it_goes(row: Any) -> tuple[str, ...]:
    """The fields that say so: of an event, what its destination's configuration says now."""
    if not getattr(row, "destination", None):
        return WHERE_IT_GOES
    return ("goes_to", *(ROUTING_OF_EVENT if is_event(row) else WHERE_IT_GOES))


def contents(row: Any) -> tuple[Any, ...]:
    """The parts of a page that show the message itself."""
    return (EVENT, CONTEXT) if row is not None and is_event(row) else (ARGUMENTS, CONTEXT)


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

    @admin.display(description="Destination")
    def goes_to(self, row: Any) -> str:
        """The destination of a message, and its key; nothing for the app's own broker."""
        if not row.destination:
            return ""
        known = row.destination in configuration.destinations()
        key = f"key {readable_order_key(row)}" if row.order_key else ""
        return format_html(
            '<span class="outbox-task">{}</span>{} <span class="outbox-quiet">{}</span>',
            one_line(row.destination),
            "" if known else format_html(' <span class="outbox-missing">{}</span>', NOT_CONFIGURED),
            key,
        )

    @admin.display(description="Order key")
    def shown_order_key(self, row: Any) -> str:
        """Messages with the same key are published one after the other."""
        return readable_order_key(row)

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

    @admin.display(description="Data")
    def shown_data(self, row: StoredMessage) -> str:
        """The redactor got the data as the only argument, so it left a list."""
        text = row.visible_args if row.redacted_args is None else _only_item(row.redacted_args)
        return preformatted(text, escaped=True)

    @admin.display(description="CloudEvents")
    def attributes(self, row: StoredMessage) -> str:
        return _named(_event(row).attributes)

    @admin.display(description="Headers")
    def shown_headers(self, row: StoredMessage) -> str:
        return _named(_event(row).headers)

    @admin.display(description="Message")
    def shown_options(self, row: StoredMessage) -> str:
        try:
            redacted = redaction.visible_options
            options = (
                json.loads(row.options) if is_event(row) else redacted(row.options, _redactor())
            )
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
        row.routing = _event(row).routing if is_event(row) else routing_of(row.options)
    found: Routing = row.routing
    return found


def _event(row: Any) -> SeenEvent:
    """The same."""
    if "event" not in vars(row):
        row.event = event_of(row)
    found: SeenEvent = row.event
    return found


def readable_order_key(row: Any) -> str:
    """The beginning of the key, as people write it."""
    if not row.order_key:
        return MISSING
    return one_line(readable(readable_key(row.order_key) or row.order_key))


def _only_item(text: str) -> str:
    """The item of a list that has one; any other text as it is."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return json.dumps(found[0]) if isinstance(found, list) and len(found) == 1 else text


def _named(values: dict[str, str]) -> str:
    """A line for each, below each other."""
    width = max(map(len, values), default=0)
    return preformatted("\n".join(f"{name:{width}}  {values[name]}".strip() for name in values))


def _redactor() -> redaction.Redactor | None:
    """The app's redactor; one that hides everything if the real one can't be loaded."""
    try:
        found: redaction.Redactor | None = load(configuration.configuration(), "redactor")
    except Exception:  # noqa: BLE001  a broken setting must not reveal what it should hide
        return _hide
    return found


def _hide(task_name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:  # noqa: ARG001
    raise LookupError("the redactor could not be imported")
