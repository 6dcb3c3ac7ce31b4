"""Events: a project's facts as messages for others, with nothing of Celery in them.

A row holds the event's data as the text or bytes that are sent, and its attributes; where it goes,
and the names of the headers, are the destination's, and looked up when it is published. Headers are
those of CloudEvents 1.0 in binary mode. `envelope` is the same for tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu import Exchange, Queue

from celery_outbox_steps import typed_json
from celery_outbox_steps.envelope import EVENT_VERSION, JSON_TYPE, Sealed, open_envelope
from celery_outbox_steps.errors import EnvelopeError
from celery_outbox_steps.messages import Message

if TYPE_CHECKING:
    from datetime import datetime

    from celery_outbox_steps.destinations import Destination
    from celery_outbox_steps.messages import ClaimedMessage

SPEC_VERSION = "1.0"
BINARY_TYPE = "application/octet-stream"
PERSISTENT, TRANSIENT = 2, 1
TRACE = ("traceparent", "tracestate")
"""The caller's trace: headers of these names, which tracing libraries read, and attributes of the
distributed tracing extension, which libraries for CloudEvents read."""


def seal_event(
    body: str | bytes,
    content_type: str,
    *,
    source: str,
    time: str,
    key: str | None,
    headers: dict[str, Any],
) -> Sealed:
    """The columns of an event's row. A text is JSON; bytes are sent as they are."""
    options: dict[str, Any] = {"source": source, "time": time}
    if key is not None:
        options["key"] = key
    if headers:
        options["headers"] = headers
    if isinstance(body, str):
        return Sealed(body, "{}", typed_json.dumps(options), None)
    options["type"] = content_type
    shown = f"[{len(body)} bytes of {content_type}]"
    return Sealed(shown, "{}", typed_json.dumps(options), body)


class EventOpener:
    """Makes the messages of one destination from its rows."""

    def __init__(self, destination: Destination, prefix: str, *, declare: bool) -> None:
        self._destination = destination
        self._prefix = prefix
        self._declare = _entities(destination) if declare else ()
        self._delivery_mode = PERSISTENT if destination.persistent else TRANSIENT

    def open(self, row: ClaimedMessage, now: datetime, since_claim: float = 0.0) -> Message:
        """The message of a row, which is an event or a task. Raises `EnvelopeError`."""
        if row.schema_version != EVENT_VERSION:
            return open_envelope(row, now, since_claim)
        try:
            return self._message(row, typed_json.loads(row.options))
        except Exception as exc:
            raise EnvelopeError(
                f"the row does not hold an event: {type(exc).__name__}: {exc}"
            ) from exc

    def _message(self, row: ClaimedMessage, options: dict[str, Any]) -> Message:
        content_type = options.get("type", JSON_TYPE[0])
        is_json = row.payload is None
        headers = options.get("headers", {})
        return Message(
            body=row.args.encode() if row.payload is None else row.payload,
            content_type=content_type,
            content_encoding=JSON_TYPE[1] if is_json else "binary",
            headers={**headers, **self._attributes(row, options, headers)},
            properties={"delivery_mode": self._delivery_mode, "message_id": row.task_id},
            priority=None,
            exchange=self._destination.exchange,
            routing_key=self._destination.routing_key_of(row.task_name, options.get("key")),
            mandatory=self._destination.mandatory,
            declare=self._declare,
            is_task=False,
        )

    def _attributes(
        self, row: ClaimedMessage, options: dict[str, Any], headers: dict[str, Any]
    ) -> dict[str, Any]:
        """The attributes of CloudEvents; the content type says what `datacontenttype` would."""
        found = {
            "specversion": SPEC_VERSION,
            "id": row.task_id,
            "source": options["source"],
            "type": row.task_name,
            "time": options["time"],
        }
        if "key" in options:
            found["partitionkey"] = options["key"]
        found |= {name: headers[name] for name in TRACE if name in headers}
        return {f"{self._prefix}{name}": value for name, value in found.items()}


def _entities(destination: Destination) -> tuple[Any, ...]:
    """What is declared before the first message."""
    if destination.queue:
        return (Queue(destination.queue, Exchange(""), destination.queue),)
    if destination.exchange:
        return (Exchange(destination.exchange, destination.exchange_type),)
    return ()
