"""`app.outbox.publish()`: an event becomes one row for each of its destinations.

Data is turned into the bytes that are sent, here in the caller, where a value that can't be is of
use as an error. What the destination decides (exchange, routing key, names of headers) is looked up
when the row is published. Next: `enqueuer.py` stores the rows.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.serializers.json import DjangoJSONEncoder
from kombu.exceptions import EncodeError
from kombu.serialization import dumps

from celery_outbox_steps.envelope import EVENT_VERSION, JSON_TYPE
from celery_outbox_steps.errors import OutboxError
from celery_outbox_steps.events import BINARY_TYPE, seal_event
from django_integration.ancestors import lineage_header
from django_integration.enqueue.capture import refuse_unsendable_headers
from django_integration.enqueue.hold import when_for
from django_integration.enqueue.redaction import redact
from django_integration.keys import stored_key
from django_integration.schema import Row

if TYPE_CHECKING:
    from celery_outbox_steps.destinations import Destination
    from celery_outbox_steps.envelope import Sealed
    from django_integration.enqueue.settings import EnqueueSettings
    from django_integration.schema import When

LONGEST_NAME = 200
LONGEST_SHORT_STRING = 255
"""Bytes that AMQP allows for a routing key and a content type."""


class Event(NamedTuple):
    """What `publish()` was given, checked."""

    id: str
    name: str
    data: Any
    key: str | None
    headers: dict[str, Any]
    when: When | None
    content_type: str | None
    """Of data that is bytes."""


def event_of(
    name: Any,
    data: Any,
    *,
    key: Any,
    headers: Any,
    when: dict[str, Any],
    content_type: str | None,
) -> Event:
    """Check what does not depend on a destination. Raises `OutboxError`, which says what to do."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not _is_plain(name):
        raise OutboxError(
            f"The name of an event is a text of at most {LONGEST_NAME} printable ASCII characters,"
            f" such as order.paid, and not {name!r}."
        )
    if key is not None and (not isinstance(key, str) or not key or not key.isprintable()):
        raise OutboxError(
            "The key of an event is a text of printable characters that is not empty, and not"
            f" {key!r}."
        )
    if headers is not None:
        _check_headers(headers)
    if content_type is not None and not _is_content_type(content_type):
        raise OutboxError(f"A content type is a text such as image/png, and not {content_type!r}.")
    given = {name: value for name, value in when.items() if value is not None}
    return Event(
        str(uuid.uuid4()),
        name,
        data,
        key,
        dict(headers or {}),
        when_for(**given) if given else None,
        content_type,
    )


def destinations_of(to: Any, settings: EnqueueSettings) -> list[Destination]:
    """The destinations that a call names."""
    names = [to] if isinstance(to, str) or not isinstance(to, Iterable) else list(to)
    if not names or to is None:
        raise OutboxError('Name at least one destination: to=["events"].')
    return list({each.name: each for each in map(settings.destination, names)}.values())


def rows_of(event: Event, to: Iterable[Destination], app: Any) -> list[Row]:
    """One row for each destination. The data is serialized once for each serializer."""
    settings: EnqueueSettings = app.outbox.settings
    headers = {**settings.recorders.trace_headers(), **event.headers}
    if settings.lineage:
        headers |= lineage_header(app, None)
    context = settings.recorders.caller_context()
    redacted = _redacted(event, settings)
    source = settings.event_source or f"/{app.main or 'celery'}"
    time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    sealed: dict[str, Sealed] = {}
    rows = []
    for destination in to:
        _check_for(destination, event, headers)
        serializer = destination.serializer
        if serializer not in sealed:
            sealed[serializer] = seal_event(
                *serialized(event, destination),
                source=source,
                time=time,
                key=event.key,
                headers=headers,
            )
        order_key = None if event.key is None else stored_key(event.key, destination.name)
        row = Row(event.id, event.name, *sealed[serializer], *redacted, *context)
        rows.append(
            row._replace(
                when=event.when,
                destination=destination.name,
                order_key=order_key,
                schema_version=EVENT_VERSION,
            )
        )
    return rows


def serialized(event: Event, destination: Destination) -> tuple[str | bytes, str]:
    """The body of the message and its content type. A text is JSON; bytes are sent as they are."""
    data = event.data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data), event.content_type or BINARY_TYPE
    if event.content_type is not None:
        raise OutboxError("content_type is for data that is bytes; other data is serialized.")
    text = _json(data, event.name)
    if destination.serializer == "json":
        return text, JSON_TYPE[0]
    try:
        content_type, _, body = dumps(json.loads(text), destination.serializer)
    except EncodeError as error:
        raise OutboxError(
            f"The data of {event.name} can't be sent to {destination.name!r} as"
            f" {destination.serializer}: {error}"
        ) from error
    return body.encode() if isinstance(body, str) else body, content_type


class EventEncoder(DjangoJSONEncoder):
    """JSON that every language can read: ISO 8601 times, texts for decimals and UUIDs. Dataclasses
    and models of Pydantic are their fields."""

    def default(self, o: Any) -> Any:
        if hasattr(o, "model_dump"):
            return o.model_dump(mode="json")
        if dataclasses.is_dataclass(o) and not isinstance(o, type):
            return {each.name: getattr(o, each.name) for each in dataclasses.fields(o)}
        return super().default(o)


def _json(data: Any, name: str) -> str:
    try:
        return json.dumps(data, cls=EventEncoder, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise OutboxError(
            f"The data of {name} can't be sent as JSON: {error}. Data is made of dictionaries,"
            " lists, texts, numbers, dates, dataclasses and models of Pydantic; or it is bytes."
        ) from error


def _check_headers(headers: Any) -> None:
    """Headers are what every broker can carry: texts, numbers, and lists and dictionaries."""
    if not isinstance(headers, Mapping):
        raise OutboxError(f"The headers of an event are a dictionary, and not {headers!r}.")
    for name, value in headers.items():
        if not isinstance(name, str) or not name or not name.isprintable():
            raise OutboxError(
                "The name of a header is a text of printable characters that is not empty, and not"
                f" {name!r}."
            )
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise OutboxError(
                f"The header {name!r} can't be sent: {error}. A header is a text, a number, True,"
                " False or None; give anything else as a text."
            ) from error


def _check_for(destination: Destination, event: Event, headers: Mapping[str, Any]) -> None:
    """Refuse what an AMQP broker would not take, while there is a caller to tell."""
    if not destination.is_amqp:
        return
    routing_key = destination.routing_key_of(event.name, event.key)
    if len(routing_key.encode()) > LONGEST_SHORT_STRING:
        raise OutboxError(
            f"The routing key of {event.name} for {destination.name!r} has more than"
            f" {LONGEST_SHORT_STRING} bytes, which AMQP does not allow: use a shorter key or"
            " format."
        )
    if headers:
        try:
            refuse_unsendable_headers(headers)
        except Exception as error:  # the codec raises what it likes
            raise OutboxError(
                f"The headers of {event.name} can't be sent to {destination.name!r}: {error}"
            ) from error


def _redacted(event: Event, settings: EnqueueSettings) -> tuple[str | None, str | None]:
    """What people may see of the data. The redactor gets it as the only argument."""
    if settings.redactor is None:
        return None, None
    if isinstance(event.data, (bytes, bytearray, memoryview)):
        return None, None  # shown by its size only
    text = _json(event.data, event.name)
    args, _ = redact(settings.redactor, event.name, lambda: ([json.loads(text)], {}))
    return args, "{}"


def _is_content_type(text: Any) -> bool:
    return isinstance(text, str) and 0 < len(text) <= LONGEST_SHORT_STRING and _is_plain(text)


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and not text.isspace()
