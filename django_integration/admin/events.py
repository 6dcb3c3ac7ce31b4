"""An event as it would be sent now: where its destination's configuration leads it, its attributes.

`EventOpener` makes the message, as it does for the relay, but of a row without its data: that is
shown by `fields.py`, redacted. Rows can hold anything: what can't be read is said, and raises
nothing.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_outbox_steps.destinations import Destination
from celery_outbox_steps.envelope import EVENT_VERSION
from celery_outbox_steps.errors import EnvelopeError
from celery_outbox_steps.events import EventOpener
from celery_outbox_steps.messages import ClaimedMessage
from django_integration.admin import configuration
from django_integration.admin.formatting import MISSING, one_line, readable
from django_integration.admin.routing import NOT_A_MESSAGE, UNREADABLE, Routing

if TYPE_CHECKING:
    from celery_outbox_steps.messages import Message
    from django_integration.models import StoredMessage

NOT_CONFIGURED = "not known: the destination is not configured"
BY_BINDINGS = "those that are bound to the exchange"
MARK = "\0"
"""In front of the attributes' names here: no header of the project has that."""
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class SeenEvent(NamedTuple):
    """The parts of an event, as text that is not escaped yet."""

    routing: Routing
    attributes: dict[str, str]
    """Those of CloudEvents, without the prefix that the destination's protocol has for them."""
    headers: dict[str, str]


UNREADABLE_EVENT = SeenEvent(
    Routing(*[UNREADABLE] * len(Routing._fields)), {"": UNREADABLE}, {"": UNREADABLE}
)


def is_event(row: StoredMessage) -> bool:
    """Whether the row holds an event, and not a task."""
    return row.schema_version == EVENT_VERSION


def event_of(row: Any) -> SeenEvent:
    """The event of a row."""
    destination = configuration.destinations().get(row.destination)
    try:
        message = _opened(row, destination)
        shown = {str(name): _text(value) for name, value in message.headers.items()}
    except (EnvelopeError, *NOT_A_MESSAGE):
        return UNREADABLE_EVENT
    attributes = {name: value for name, value in shown.items() if name.startswith(MARK)}
    return SeenEvent(
        _routing(message, destination),
        {
            **{name.removeprefix(MARK): value for name, value in attributes.items()},
            "datacontenttype": _text(message.content_type),
        },
        {name: value for name, value in shown.items() if name not in attributes},
    )


def _opened(row: StoredMessage, destination: Destination | None) -> Message:
    """The message without its data."""
    unsent = ClaimedMessage(
        row.pk, row.task_id, row.task_name, "", "", row.options, None, 0, row.schema_version,
        None, None, None, None, 0.0,
    )  # fmt: skip
    stand_in = destination or Destination("", "memory://")
    return EventOpener(stand_in, MARK, declare=False).open(unsent, EPOCH)


def _routing(message: Message, destination: Destination | None) -> Routing:
    if destination is None:
        return Routing(*[NOT_CONFIGURED] * 3, *[MISSING] * 3)
    return Routing(
        queue=_text(destination.queue) if destination.queue else BY_BINDINGS,
        exchange=_text(message.exchange or "(default)"),
        routing_key=_text(message.routing_key),
        priority=MISSING,
        eta=MISSING,
        expires=MISSING,
    )


def _text(value: Any) -> str:
    return one_line(value if isinstance(value, str) else readable(json.dumps(value, default=str)))
