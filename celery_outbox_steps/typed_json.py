"""JSON that keeps bytes, datetimes and decimals: AMQP has its own types for these three.

Other values are written as kombu's JSON writes them. `loads` returns a dictionary or raises: the
text comes from a row and is not trusted. Used by `envelope` and `entities`.
"""

from __future__ import annotations

import base64
import json
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from kombu.utils.json import JSONEncoder

from celery_outbox_steps.errors import EnvelopeError

if TYPE_CHECKING:
    from collections.abc import Callable

_TYPE = "\x00"
"""The key that marks a value with a type: a NUL character, which no real header has as a key."""
_IN_TEXT = '"\\u0000"'

_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "bytes": base64.b64decode,
    "datetime": datetime.fromisoformat,
    "decimal": Decimal,
}


def loads(text: str) -> dict[str, Any]:
    """The fields of a text. Raises `EnvelopeError` if it is not a JSON object."""
    fields = json.loads(text, object_hook=_without_type if _IN_TEXT in text else None)
    if not isinstance(fields, dict):
        raise EnvelopeError("options must be an object")
    return fields


def _with_type(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_TYPE: "bytes", "value": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {_TYPE: "datetime", "value": value.isoformat()}
    if isinstance(value, Decimal):
        return {_TYPE: "decimal", "value": str(value)}
    return JSONEncoder().default(value)


dumps: Callable[[dict[str, Any]], str] = json.JSONEncoder(default=_with_type).encode
"""The fields as ASCII text."""


def _without_type(value: dict[str, Any]) -> Any:
    if value.keys() != {_TYPE, "value"}:
        return value
    return _FROM_TEXT[value[_TYPE]](value["value"])
