"""The events of one test, and the assertion that one of them was published.

An event is one object, however many destinations it has a row for. Its data is what a consumer gets
from the message: dates and decimals are texts, and models are dictionaries. Next: `outbox.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dateutil.parser import isoparse
from kombu.serialization import loads, registry

from celery_outbox_steps import typed_json
from django_integration.enqueue.events import EventEncoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from django_integration.testing.outbox import Outbox

NOTHING_PUBLISHED = (
    "No event was published in this test. A call in `transaction.on_commit` needs "
    "`self.captureOnCommitCallbacks(execute=True)` of Django's TestCase, or pytest-django's "
    "`django_capture_on_commit_callbacks(execute=True)`."
)


@dataclass(frozen=True)
class Event:
    """An event as consumers will get it."""

    name: str
    id: str
    data: Any
    to: tuple[str, ...]
    """The names of its destinations."""
    key: str | None
    headers: dict[str, Any]
    """Those of the call, and of the caller's trace; without the attributes of CloudEvents."""
    eta: datetime | None
    content_type: str | None
    """Of data that is bytes."""

    def __str__(self) -> str:
        key = f", key {self.key}" if self.key is not None else ""
        eta = f", eta {self.eta.isoformat()}" if self.eta else ""
        return f"{self.name} {self.data!r} to {', '.join(self.to)}{key}{eta}"


def read_event(row: Any, destination: str) -> Event:
    """The event that a row holds, of the table or as it was claimed."""
    options = typed_json.loads(row.options)
    content_type = options.get("type")
    if row.payload is None:
        data = json.loads(row.args)
    elif content_type in registry.type_to_name:
        data = loads(bytes(row.payload), content_type, "binary", accept=[content_type])
    else:
        data = bytes(row.payload)
    return Event(
        name=row.task_name,
        id=row.task_id,
        data=data,
        to=(destination,),
        key=options.get("key"),
        headers=options.get("headers", {}),
        eta=isoparse(row.eta) if isinstance(row.eta, str) else row.eta,
        content_type=content_type if isinstance(data, bytes) else None,
    )


def grouped(events: Iterable[Event]) -> list[Event]:
    """Those with the same id as one, with all their destinations."""
    found: dict[str, Event] = {}
    for event in events:
        before = found.get(event.id)
        found[event.id] = event if before is None else replace(before, to=(*before.to, *event.to))
    return list(found.values())


class EventPublished:
    """An assertion that lists what was published instead."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def __call__(
        self,
        name: str,
        data: Any = None,
        to: str | Sequence[str] | None = None,
        key: str | None = None,
        *,
        count: int | None = None,
    ) -> Event:
        """The first event that fits; what is not given fits all. `to`: among its destinations.

        `data` may be what was given to `publish()`. With `count=0` none may fit, and there is
        nothing to return.
        """
        __tracebackhide__ = True
        wanted = _Wanted(name, _sent(data), (to,) if isinstance(to, str) else to, key)
        published = grouped([*self._outbox.relayed_events, *self._outbox.events])
        fitting = [event for event in published if wanted.fits(event)]
        if len(fitting) != count if count is not None else not fitting:
            raise AssertionError(_failure_text(wanted, len(fitting), published))
        return fitting[0] if fitting else None  # type: ignore[return-value]  # with count=0


@dataclass(frozen=True)
class _Wanted:
    """What an assertion asks for; None fits anything."""

    name: str
    data: Any
    to: Sequence[str] | None
    key: str | None

    def fits(self, event: Event) -> bool:
        return (
            event.name == self.name
            and self.data in (None, event.data)
            and set(self.to or ()) <= set(event.to)
            and self.key in (None, event.key)
        )

    def __str__(self) -> str:
        pairs = [("data", self.data), ("to", self.to), ("key", self.key)]
        given = [f"{name}={value!r}" for name, value in pairs if value is not None]
        return f"{self.name} with {', '.join(given)}" if given else self.name


def _sent(data: Any) -> Any:
    """Data as it arrives."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    return json.loads(json.dumps(data, cls=EventEncoder))


def _failure_text(wanted: _Wanted, times: int, published: Sequence[Event]) -> str:
    if not published:
        return f"{wanted} was not published. {NOTHING_PUBLISHED}"
    verb = f"was published {times} times" if times else "was not published"
    listed = "\n".join(f"  {number}. {event}" for number, event in enumerate(published, 1))
    return f"{wanted} {verb}. Published in this test:\n{listed}"
