"""Reads a row back as a task call: arguments decoded, with routing and times.

The row is opened with the relay's own envelope, so a test sees what a worker would get.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from dateutil.parser import isoparse
from kombu import Queue
from kombu.compression import decompress
from kombu.serialization import loads

from celery_outbox_steps.envelope import open_envelope
from celery_outbox_steps.messages import ETA_HEADER, ClaimedMessage, Message

if TYPE_CHECKING:
    from django_integration.models import StoredMessage


@dataclass(frozen=True)
class Call:
    """A task call as the worker will get it."""

    task_name: str
    task_id: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str
    eta: datetime | None
    expires: datetime | None
    priority: int | None
    headers: dict[str, Any]
    """Celery's headers, and those of the call."""
    embed: dict[str, Any]
    """Callbacks, errbacks, chain and chord of the call."""
    message: Message
    """What the relay hands to the broker."""
    destination: str | None = None
    """None: the app's own broker."""

    def __str__(self) -> str:
        shown = [repr(value) for value in self.args]
        shown += [f"{name}={value!r}" for name, value in self.kwargs.items()]
        eta = f", eta {self.eta.isoformat()}" if self.eta else ""
        at = f" of {self.destination}" if self.destination else ""
        return f"{self.task_name}({', '.join(shown)}) to queue {self.queue}{at}{eta}"


def read_row(row: StoredMessage) -> Call:
    """The call that a row holds."""
    columns: dict[str, Any] = {name: getattr(row, name, 0.0) for name in ClaimedMessage._fields}
    if row.payload is not None:
        columns["payload"] = bytes(row.payload)
    if row.eta is not None:
        columns["eta"] = row.eta.isoformat()
    message = open_envelope(ClaimedMessage(**columns), datetime.now(timezone.utc))
    return read_message(message, getattr(row, "destination", None))


def read_message(message: Message, destination: str | None = None) -> Call:
    """The call that a message carries. The eta of a held call is in a header of the outbox."""
    args, kwargs, embed, fields = _parts(message)
    queue = next((each.name for each in message.declare if isinstance(each, Queue)), None)
    return Call(
        task_name=fields["task"],
        task_id=fields["id"],
        args=list(args),
        kwargs=dict(kwargs),
        queue=queue or message.routing_key,
        eta=_time(message.headers.get(ETA_HEADER) or fields.get("eta")),
        expires=_time(fields.get("expires")),
        priority=message.priority,
        headers=message.headers,
        embed=embed,
        message=message,
        destination=destination,
    )


def _parts(message: Message) -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    """Arguments, embed, and where Celery keeps the rest: headers (protocol 2) or body (1)."""
    body = message.body
    if message.headers.get("compression"):
        body = decompress(body, message.headers["compression"])
    # The test made the call itself, so its serializer is trusted.
    accept = [message.content_type]
    found = loads(body, message.content_type, message.content_encoding, accept=accept)
    if isinstance(found, dict):
        embed = {name: found.get(name) for name in ("callbacks", "errbacks", "chord")}
        return found["args"], found["kwargs"], embed, found
    return found[0], found[1], found[2], message.headers


def _time(value: Any) -> Any:
    return isoparse(value) if isinstance(value, str) else value
