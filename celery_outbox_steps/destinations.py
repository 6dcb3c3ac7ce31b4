"""Destinations: other brokers that events and tasks are published to, as a project configures them.

`CELERY_OUTBOX_DESTINATIONS` maps names to dictionaries; here they are validated and become
`Destination`s. An error names the destination and the option, and never shows a URL, which may hold
a password. Nothing connects: `celery_outbox_steps.publishers.broker` does.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from string import Formatter
from typing import Any

from kombu.serialization import dumps
from kombu.utils.url import sanitize_url

from celery_outbox_steps.errors import ConfigurationError
from celery_outbox_steps.kinds import BOOLEAN, COUNT, RETRIES, SECONDS, Kind

SETTING = "CELERY_OUTBOX_DESTINATIONS"
LONGEST_NAME = 100
MASK = "********"
AMQP_SCHEMES = {"amqp", "amqps", "pyamqp", "librabbitmq"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PLACEHOLDERS = {"name", "key"}
RELAY_OPTIONS: dict[str, Kind] = {
    "batch_size": COUNT,
    "send_timeout": SECONDS,
    "max_retries": RETRIES,
    "backoff_time": SECONDS,
    "max_backoff": SECONDS,
    "broker_outage_cooldown": SECONDS,
}
"""Settings of the relay that a destination may have values of its own for."""


@dataclass(frozen=True, slots=True)
class Destination:
    """One destination. Options without a default of their own follow the settings."""

    name: str
    url: Any = field(repr=False)
    """A URL of kombu, or a list of URLs to try in turn."""
    exchange: str = ""
    exchange_type: str = "topic"
    routing_key: str = "{name}"
    """A format: `{name}` is the event's name, `{key}` its key, or nothing."""
    queue: str = ""
    """Messages go to this queue, which is declared, instead of an exchange."""
    serializer: str = "json"
    header_prefix: str = ""
    """In front of the names of CloudEvents' attributes; by default that of the protocol."""
    mandatory: bool = False
    """A message that no queue receives has failed."""
    persistent: bool = True
    declare: bool | None = None
    """Declare the exchange or queue; by default as `CELERY_OUTBOX_DECLARE` says."""
    transport_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    ssl: Any = field(default=False, repr=False)
    relay_options: Mapping[str, Any] = field(default_factory=dict)
    """Values of this destination for some of `RELAY_OPTIONS`."""

    @property
    def described(self) -> str:
        """Its place in the setting, for errors."""
        return f"{SETTING}[{self.name!r}]"

    @property
    def is_amqp(self) -> bool:
        """Whether its broker speaks AMQP, as far as its URL says."""
        url = self.url if isinstance(self.url, str) else self.url[0]
        return url.partition("://")[0] in AMQP_SCHEMES

    def routing_key_of(self, name: str, key: str | None) -> str:
        """The routing key of an event."""
        return self.queue or self.routing_key.format(name=name, key=key or "")


def destinations(value: Any) -> dict[str, Destination]:
    """The parser of the setting. Raises `ConfigurationError`, which says what to change."""
    if not isinstance(value, Mapping):
        raise ValueError
    found = {
        name: options if isinstance(options, Destination) else _destination(name, options)
        for name, options in value.items()
    }
    _refuse_alike(found)
    return found


DESTINATIONS = Kind(
    'a dictionary such as {"events": {"url": "amqp://…", "exchange": "domain"}}',
    destinations,
    is_secret=True,
)
_KINDS: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "url": ("a URL such as amqp://host//, or a list of URLs", (str, list, tuple)),
    "exchange": ("the name of an exchange", str),
    "exchange_type": ("the type of an exchange, such as topic, direct or fanout", str),
    "routing_key": ("a text, with {name} and {key} as placeholders", str),
    "queue": ("the name of a queue", str),
    "serializer": ("the name of a serializer of kombu, such as json or msgpack", str),
    "header_prefix": ("a text", str),
    "transport_options": ("a dictionary", Mapping),
    "ssl": ("True, False or a dictionary", (bool, Mapping)),
}
OPTIONS = sorted(
    {each.name for each in fields(Destination)} - {"name", "relay_options"} | RELAY_OPTIONS.keys()
)


def masked(value: Any) -> Any:
    """The setting for people: without what may be secret in a URL."""
    if not isinstance(value, Mapping):
        return f"a {type(value).__name__}"
    return {
        name: {**options, "url": _masked_url(options.get("url"))}
        if isinstance(options, Mapping)
        else f"a {type(options).__name__}"
        for name, options in value.items()
    }


def _masked_url(url: Any) -> Any:
    if isinstance(url, (list, tuple)):
        return [_masked_url(each) for each in url]
    return sanitize_url(url.partition("?")[0], MASK) if _is_url(url) else MASK


def _destination(name: Any, options: Any) -> Destination:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        shown = "a URL as a name" if "://" in str(name) else f"the name {name!r}"
        raise ConfigurationError(
            f"{SETTING} has {shown}. A name has at most {LONGEST_NAME} letters, digits, "
            "dots, underscores and hyphens."
        )
    if not isinstance(options, Mapping):
        raise _error(name, 'must be a dictionary such as {"url": "amqp://…", "exchange": "domain"}')
    own = {option: _checked(name, option, value) for option, value in options.items()}
    if not own.get("url"):
        raise _error(name, 'needs a "url", such as amqp://host//')
    if own.get("queue") and (own.get("exchange") or "routing_key" in own):
        raise _error(name, 'has a "queue": then it can\'t have an "exchange" or a "routing_key"')
    relay = {option: own.pop(option) for option in list(own) if option in RELAY_OPTIONS}
    return Destination(name, **own, relay_options=relay)


def _refuse_alike(names: Iterable[str]) -> None:
    """MySQL compares text without regard to case, and would mix their messages up."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.lower(), name)
        if other != name:
            raise ConfigurationError(
                f"{SETTING} has {other!r} and {name!r}. Some databases take them for the same name:"
                " they must differ in more than upper and lower case."
            )


def _checked(name: str, option: Any, value: Any) -> Any:
    if option not in OPTIONS:
        near = difflib.get_close_matches(str(option), OPTIONS, 1, 0.5)
        hint = f'Did you mean "{near[0]}"?' if near else f"There are {', '.join(OPTIONS)}."
        raise _error(name, f"has the unknown option {option!r}. {hint}")
    if option in RELAY_OPTIONS:
        return _parsed(name, option, RELAY_OPTIONS[option], value)
    if option in ("mandatory", "persistent") or (option == "declare" and value is not None):
        return _parsed(name, option, BOOLEAN, value)
    words, kind = _KINDS.get(option, ("", object))
    if not isinstance(value, kind) or (option == "url" and not _is_url(value)):
        raise _error(name, f'has a wrong "{option}": it must be {words}')
    if option == "routing_key" and not _is_format(value):
        raise _error(name, 'has a wrong "routing_key": its placeholders are {name} and {key}')
    if option == "serializer" and not _can_serialize(value):
        raise _error(name, f'has a wrong "serializer": it must be {words}, and installed')
    return value


def _parsed(name: str, option: str, kind: Kind, value: Any) -> Any:
    try:
        return kind.parse(value)
    except ValueError:
        raise _error(name, f'has a wrong "{option}": it must be {kind.words}') from None


def _is_url(value: Any) -> bool:
    urls = [value] if isinstance(value, str) else value
    return bool(urls) and all(isinstance(each, str) and "://" in each for each in urls)


def _is_format(text: Any) -> bool:
    try:
        text.format(name="", key="")
        return {each for _, each, _, _ in Formatter().parse(text)} <= {*_PLACEHOLDERS, None}
    except (ValueError, LookupError, AttributeError):
        return False


def _can_serialize(serializer: Any) -> bool:
    try:
        *_, body = dumps({}, serializer)
    except Exception:  # noqa: BLE001  each raises errors of its own
        return False
    return isinstance(body, (str, bytes))  # "raw" passes data on as it is


def _error(name: str, what: str) -> ConfigurationError:
    end = "" if what.endswith(("?", ".")) else "."
    return ConfigurationError(f"{SETTING}[{name!r}] {what}{end}")
