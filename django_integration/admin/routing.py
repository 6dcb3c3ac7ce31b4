"""Where a message goes and when it expires, read from its row for the pages of the admin.

A row can hold anything, and these pages are where people look at the broken ones: what can't be
read is said, and raises nothing. Arguments are not among it: `base.py` shows those, redacted.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from django.utils.dateparse import parse_datetime

from django_integration.admin.formatting import MISSING, exact_moment, one_line, readable

UNREADABLE = "[not readable]"
NOT_A_MESSAGE = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""What reading a row's `options` raises if they hold something else."""


class Routing(NamedTuple):
    """The fields, each as text or HTML that is safe to show."""

    queue: str
    exchange: str
    routing_key: str
    priority: str
    eta: str
    """The time in Celery's own header, of a message that is not held in the table."""
    expires: str


def routing_of(options: str) -> Routing:
    """The routing in a row's `options`."""
    try:
        found = json.loads(options)
        headers = found.get("headers") or {}
        return Routing(
            queue=_queue(found),
            exchange=_text(found.get("exchange") or "(default)"),
            routing_key=_text(found.get("routing_key")),
            priority=_text(found.get("priority")),
            eta=_time(headers.get("eta")),
            expires=_time(headers.get("expires")),
        )
    except NOT_A_MESSAGE:
        return Routing(*[UNREADABLE] * len(Routing._fields))


def _queue(options: dict[str, Any]) -> str:
    """The default exchange routes by the queue's name; for others it is what Celery declares."""
    if not options.get("exchange"):
        return _text(options.get("routing_key"))
    entities = [json.loads(text) for text in options.get("declare", ())]
    return _text(", ".join(str(each["name"]) for each in entities if each.get("kind") == "queue"))


def _text(value: Any) -> str:
    return MISSING if value is None else one_line(readable(str(value)))


def _time(value: Any) -> str:
    point = parse_datetime(value) if isinstance(value, str) else None
    return exact_moment(point) if point else _text(value)
