"""The envelope: a captured message as the texts of a row, and the row as a message again.

Opening a row restores what was captured: body bytes, content type, every header and property,
exchange, routing key and the queues to declare. Only what is relative to "now" (a TTL, a native
delay) is shortened by the time that the row waited. The format has a version; a relay claims only
versions that it can open. The next step of the path is `celery_outbox_steps.publishers`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from dateutil.parser import isoparse

from celery_outbox_steps import typed_json
from celery_outbox_steps.entities import entity_from_text, text_of_entity
from celery_outbox_steps.errors import EnvelopeError
from celery_outbox_steps.messages import ETA_HEADER, ClaimedMessage, Message

if TYPE_CHECKING:
    from datetime import datetime

SCHEMA_VERSION = 1
SUPPORTED_VERSIONS = (1,)
FOR_DESTINATION = 100
"""Added to the version of a task's row that is for a destination: relays of earlier releases, which
know no destinations, leave such rows alone, also if one is replayed into the wrong table."""
EVENT_VERSION = 100
DELIVERY_VERSIONS = (EVENT_VERSION, *(FOR_DESTINATION + each for each in SUPPORTED_VERSIONS))

JSON_TYPE = ("application/json", "utf-8")
PLAIN_EMBED = '{"callbacks": null, "errbacks": null, "chain": null, "chord": null}'
"""The third part of nearly every body: the embed of a task without callbacks. Not stored."""

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
        texts = ascii_text(argsrepr), ascii_text(kwargsrepr), typed_json.dumps(options)
        return Sealed(*texts, message.body)
    args, kwargs, embed = parts
    if embed != PLAIN_EMBED:
        options["embed"] = embed
    return Sealed(args, kwargs, typed_json.dumps(options), None)


def open_envelope(row: ClaimedMessage, now: datetime, since_claim: float = 0.0) -> Message:
    """Turn a claimed row into the message to publish at `now`, `since_claim` seconds after that.

    Raises `EnvelopeError` if the row does not hold a message.
    """
    if row.schema_version % FOR_DESTINATION not in SUPPORTED_VERSIONS:
        raise EnvelopeError(
            f"schema version {row.schema_version} is not one of {SUPPORTED_VERSIONS}"
        )
    try:
        options = typed_json.loads(row.options)
        if row.payload is not None:
            body = row.payload
        else:
            embed = options.get("embed", PLAIN_EMBED)
            body = f"[{row.args}, {row.kwargs}, {embed}]".encode()
        message = _message(body, options)
        if row.eta is not None:
            message.headers[ETA_HEADER] = row.eta
        if "expires" in options:
            left = _ttl_left(message, row.waited + since_claim)
            message.properties["expiration"], message.expired = str(left), left == 0
        if "eta" in options:
            message.routing_key = _delayed_key(message, row.waited + since_claim)
        if "event" in options:
            message.event = _event(options["event"], now)
    except EnvelopeError:
        raise
    except Exception as exc:
        raise EnvelopeError(
            f"the row does not hold a message: {type(exc).__name__}: {exc}"
        ) from exc
    return message


def seconds_to_live(options: str) -> float | None:
    """How long after the call its message expires; None if it does not, or if there is none."""
    try:
        found = typed_json.loads(options)
        return int(found["properties"]["expiration"]) / 1000 if "expires" in found else None
    except (KeyError, TypeError, ValueError):  # a row that holds no message fails at its publish
        return None


def size_of(row: Any) -> int:
    """The approximate size of a row's contents in bytes, before it is stored or after a claim."""
    return len(row.args) + len(row.kwargs) + len(row.options) + len(row.payload or b"")


def ascii_text(value: Any) -> str:
    """Text for people, not for parsers. ASCII, so that a database of any encoding can hold it."""
    text = str(value).encode("ascii", "backslashreplace").decode()
    return text.replace("\x00", "\\x00")


def stored_id(task_id: str) -> str:
    """A task's id or name as its column holds it, for lookups; the message has it in full."""
    return ascii_text(task_id)[:255]


def _split(message: Message) -> tuple[str, str, str] | None:
    """The texts of args, kwargs and embed, if the body is exactly these three as a JSON array.

    The body is cut into parts, which are not serialised again: the row keeps what Celery wrote.
    ASCII only, so that a database of any encoding can hold the text.
    """
    if (message.content_type, message.content_encoding) != JSON_TYPE or not message.body.isascii():
        return None
    text = message.body.decode()
    if "compression" in message.headers or not text.startswith("[["):
        return None
    try:
        _, args_end = _find_end(text, 1)
        _, kwargs_end = _find_end(text, args_end + 2)
        parts = text[1:args_end], text[args_end + 2 : kwargs_end], text[kwargs_end + 2 : -1]
    except (ValueError, RecursionError):
        return None
    return parts if text == f"[{parts[0]}, {parts[1]}, {parts[2]}]" else None


def _options(message: Message) -> dict[str, Any]:
    """Everything but the body; defaults are left out."""
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
        options["declare"] = list(map(text_of_entity, message.declare))
    return options


def _message(body: bytes, options: dict[str, Any]) -> Message:
    content_type, content_encoding = options.get("type", JSON_TYPE)
    headers, properties = options["headers"], options["properties"]
    if not isinstance(headers, dict) or not isinstance(properties, dict):
        raise EnvelopeError("headers and properties must be objects")
    if isinstance(options["exchange"], (dict, list)):  # publishers group messages by exchange
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
        declare=tuple(map(entity_from_text, options.get("declare", ()))),
    )


def _event(options: dict[str, Any], now: datetime) -> Message:
    """The `task-sent` event, with `now` as its time: the task is really sent now."""
    message = _message(options["body"], options)
    if (message.content_type, message.content_encoding) == JSON_TYPE:
        fields = json.loads(message.body)
        fields["timestamp"] = now.timestamp()
        message.body = json.dumps(fields).encode()
    return message


# -- times ---------------------------------------------------------------------------------------


def _is_time(text: Any) -> bool:
    """Whether this is a time; a header can hold anything. If not, the TTL or delay is kept."""
    try:
        return bool(text and isoparse(text))
    except (TypeError, ValueError):
        return False


def _ttl_left(message: Message, waited: float) -> int:
    """The TTL minus the wait, which the database measured: this machine's clock may be wrong."""
    return max(0, int(int(message.properties["expiration"]) - waited * 1000))


def _delayed_key(message: Message, waited: float) -> str:
    """Celery's delay is a binary number in front of the routing key: subtract the wait from it.

    The result is never longer than what Celery computed. It is rounded, so that the few
    milliseconds that a row usually waits do not take a whole second off the delay.
    """
    found = _DELAYED.match(message.exchange)
    if found is None:
        raise EnvelopeError(f"{message.exchange!r} is not an exchange for native delays")
    width = int(found[1]) + 1
    bits, key = message.routing_key[: 2 * width], message.routing_key[2 * width :]
    delay = int(bits.replace(".", ""), 2)
    remaining = min(delay, max(0, int(delay - waited + 0.5)))
    return ".".join(f"{remaining:0{width}b}") + f".{key}"
