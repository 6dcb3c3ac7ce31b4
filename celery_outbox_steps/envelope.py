"""The envelope: a captured message as the texts of a row, and the row as a message again.

What goes in comes out: body bytes, content type, every header and property, exchange, routing key
and the queues to declare. Only what is relative to "now" (a TTL, a native delay) is shortened by
the time that the row waited. The format has a version; a relay claims only versions that it can
open. The next step of the path is `celery_outbox_steps.publishers`.
"""

from __future__ import annotations

import base64
import json
import re
import weakref
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from dateutil.parser import isoparse
from kombu import Exchange, Queue
from kombu.entity import binding
from kombu.utils.json import JSONEncoder

from celery_outbox_steps.errors import EnvelopeError
from celery_outbox_steps.messages import ClaimedMessage, Message

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA_VERSION = 1
SUPPORTED_VERSIONS = (1,)

JSON_TYPE = ("application/json", "utf-8")
PLAIN_EMBED = '{"callbacks": null, "errbacks": null, "chain": null, "chord": null}'
"""The third part of nearly every body: a task with no callbacks. Not stored."""

_NATIVE = "\x00"  # the key that marks a value JSON has no type for; no sane header uses it
_DELAYED = re.compile(r"^celery_delayed_(\d+)$")
_find_end = json.JSONDecoder().raw_decode


class Sealed(NamedTuple):
    """The columns of a row that hold the message."""

    args: str
    kwargs: str
    options: str
    payload: bytes | None


def seal(
    message: Message,
    *,
    argsrepr: str = "",
    kwargsrepr: str = "",
    eta: str | None = None,
    expires: str | None = None,
) -> Sealed:
    """Turn a captured message into row texts. `eta` and `expires` are its times in ISO 8601."""
    options = _options(message)
    if _DELAYED.match(message.exchange) and _is_time(eta):
        options["eta"] = eta
    if "expiration" in message.properties and _is_time(expires):
        options["expires"] = expires
    if message.event is not None:
        options["event"] = _options(message.event) | {"body": message.event.body}
    parts = _split(message)
    if parts is None:
        return Sealed(ascii_text(argsrepr), ascii_text(kwargsrepr), _dump(options), message.body)
    args, kwargs, embed = parts
    if embed != PLAIN_EMBED:
        options["embed"] = embed
    return Sealed(args, kwargs, _dump(options), None)


def open_envelope(row: ClaimedMessage, now: datetime, held: float = 0.0) -> Message:
    """Turn a claimed row into the message to publish at `now`. `EnvelopeError` if it is none.

    `held` are the seconds since the claim.
    """
    if row.schema_version not in SUPPORTED_VERSIONS:
        raise EnvelopeError(
            f"schema version {row.schema_version} is not one of {SUPPORTED_VERSIONS}"
        )
    try:
        options = _load(row.options)
        if row.payload is not None:
            body = row.payload
        else:
            embed = options.get("embed", PLAIN_EMBED)
            body = f"[{row.args}, {row.kwargs}, {embed}]".encode()
        message = _message(body, options)
        if "expires" in options:
            message.properties["expiration"] = _ttl_left(message, row.waited + held)
        if "eta" in options:
            message.routing_key = _delayed_key(message, row.waited + held)
        if "event" in options:
            message.event = _event(options["event"], now)
    except EnvelopeError:
        raise
    except Exception as exc:
        raise EnvelopeError(
            f"the row does not hold a message: {type(exc).__name__}: {exc}"
        ) from exc
    return message


def size_of(row: Any) -> int:
    """About how many bytes a row holds, on its way in or out."""
    return len(row.args) + len(row.kwargs) + len(row.options) + len(row.payload or b"")


def ascii_text(value: Any) -> str:
    """For people only: any database can hold it, whatever its encoding."""
    text = str(value).encode("ascii", "backslashreplace").decode()
    return text.replace("\x00", "\\x00")


def _split(message: Message) -> tuple[str, str, str] | None:
    """The texts of args, kwargs and embed, if the body is exactly their plain JSON join.

    The serialised body is cut, never serialised again in parts: what Celery wrote is what is kept.
    ASCII only, so that any database can hold the text whatever its encoding.
    """
    if (message.content_type, message.content_encoding) != JSON_TYPE or not message.body.isascii():
        return None
    text = message.body.decode()
    if "compression" in message.headers or not text.startswith("[["):
        return None
    try:
        _, end = _find_end(text, 1)
        _, embed = _find_end(text, end + 2)
        parts = text[1:end], text[end + 2 : embed], text[embed + 2 : -1]
    except (ValueError, RecursionError):
        return None
    return parts if text == f"[{parts[0]}, {parts[1]}, {parts[2]}]" else None


def _options(message: Message) -> dict[str, Any]:
    """Everything but the body, without what is the default anyway."""
    options: dict[str, Any] = {
        "headers": message.headers,
        "properties": message.properties,
        "priority": message.priority,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
    }
    if (message.content_type, message.content_encoding) != JSON_TYPE:
        options["type"] = [message.content_type, message.content_encoding]
    if message.mandatory:
        options["mandatory"] = True
    if message.declare:
        options["declare"] = [_entity_text(entity) for entity in message.declare]
    return options


def _message(body: bytes, options: dict[str, Any]) -> Message:
    content_type, content_encoding = options.get("type", JSON_TYPE)
    headers, properties = options["headers"], options["properties"]
    if not isinstance(headers, dict) or not isinstance(properties, dict):
        raise EnvelopeError("headers and properties must be objects")
    if isinstance(options["exchange"], (dict, list)):  # publishers sort messages by it
        raise EnvelopeError("exchange must be a name")
    return Message(
        body=body,
        content_type=content_type,
        content_encoding=content_encoding,
        headers=headers,
        properties=properties,
        priority=options["priority"],
        exchange=options["exchange"],
        routing_key=options["routing_key"],
        mandatory=options.get("mandatory", False),
        declare=tuple(map(_entity, options.get("declare", ()))),
    )


def _event(options: dict[str, Any], now: datetime) -> Message:
    """The `task-sent` event, dated now: this is when the task is really sent."""
    message = _message(options["body"], options)
    if (message.content_type, message.content_encoding) == JSON_TYPE:
        fields = json.loads(message.body)
        fields["timestamp"] = now.timestamp()
        message.body = json.dumps(fields).encode()
    return message


# -- times ---------------------------------------------------------------------------------------


def _is_time(text: Any) -> bool:
    """A caller may put anything into the headers; then the TTL stays what Celery made of it."""
    try:
        return bool(text and isoparse(text))
    except (TypeError, ValueError):
        return False


def _ttl_left(message: Message, waited: float) -> str:
    """By the time that the row waited, which the database measured: the clock here may be wrong."""
    return str(max(0, int(int(message.properties["expiration"]) - waited * 1000)))


def _delayed_key(message: Message, waited: float) -> str:
    """Celery's delay is a binary number in front of the routing key; count it down.

    Never longer than what Celery computed, and rounded, so that a delay of whole seconds does not
    lose one to the few milliseconds that the row waited.
    """
    found = _DELAYED.match(message.exchange)
    if found is None:
        raise EnvelopeError(f"{message.exchange!r} is not an exchange for native delays")
    width = int(found[1]) + 1
    bits, key = message.routing_key[: 2 * width], message.routing_key[2 * width :]
    delay = int(bits.replace(".", ""), 2)
    left = min(delay, max(0, int(delay - waited + 0.5)))
    return ".".join(f"{left:0{width}b}") + f".{key}"


# -- values that JSON has no type for ------------------------------------------------------------


def _dump(options: dict[str, Any]) -> str:
    return json.dumps(options, default=_mark)


def _load(text: str) -> dict[str, Any]:
    options = json.loads(text, object_hook=_unmark if '"\\u0000"' in text else None)
    if not isinstance(options, dict):
        raise EnvelopeError("options must be an object")
    return options


def _mark(value: Any) -> Any:
    """AMQP has types of its own for these three; the rest travels as kombu's JSON writes it."""
    if isinstance(value, bytes):
        return {_NATIVE: "bytes", "value": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {_NATIVE: "datetime", "value": value.isoformat()}
    if isinstance(value, Decimal):
        return {_NATIVE: "decimal", "value": str(value)}
    return JSONEncoder().default(value)


_UNMARK: dict[str, Callable[[str], Any]] = {
    "bytes": base64.b64decode,
    "datetime": datetime.fromisoformat,
    "decimal": Decimal,
}


def _unmark(value: dict[str, Any]) -> Any:
    if value.keys() != {_NATIVE, "value"}:
        return value
    return _UNMARK[value[_NATIVE]](value["value"])


# -- queues and exchanges to declare -------------------------------------------------------------


_texts: dict[int, tuple[weakref.ref[Any], str]] = {}
"""Entities live as long as their app, and a text takes longer than the rest of the envelope."""


def _entity_text(entity: Any) -> str:
    known, text = _texts.get(id(entity), (None, ""))
    if known is not None and known() is entity:
        return text
    text, key = _describe(entity), id(entity)
    _texts[key] = weakref.ref(entity, lambda _: _texts.pop(key, None)), text
    return text


def _describe(entity: Any) -> str:
    """A queue or exchange as text: what it is, and each attribute that is not the default."""
    kind = "exchange" if isinstance(entity, Exchange) else "queue"
    return _dump({"kind": kind, **_attributes(entity, Exchange if kind == "exchange" else Queue)})


def _attributes(entity: Any, cls: type) -> dict[str, Any]:
    # `==` and not `!=`: kombu's Exchange answers the latter wrongly for anything but an Exchange.
    pairs = ((name, getattr(entity, name, None)) for name, _ in cls.attrs)  # type: ignore[attr-defined]
    return {
        name: _plain(value)
        for name, value in pairs
        if value not in (None, set()) and not value == getattr(cls, name, None)  # noqa: SIM201
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Exchange):
        return _attributes(value, Exchange)
    if isinstance(value, binding):
        return _attributes(value, binding)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value


@lru_cache(maxsize=1024)
def _entity(text: str) -> Any:
    """The entity that a text describes; one object per text, so that it is declared once."""
    fields = _load(text)
    return _KINDS[fields.pop("kind")](fields)


def _exchange(fields: dict[str, Any]) -> Any:
    return Exchange(**fields)


def _queue(fields: dict[str, Any]) -> Any:
    if "exchange" in fields:
        fields["exchange"] = Exchange(**fields["exchange"])
    fields["bindings"] = [
        binding(**{**bound, "exchange": Exchange(**bound.get("exchange", {}))})
        for bound in fields.get("bindings", ())
    ]
    return Queue(**fields)


_KINDS = {"exchange": _exchange, "queue": _queue}
