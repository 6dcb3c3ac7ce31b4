"""The kinds of values that settings have: each in words and as a parser.

A parser returns the value in its final type or raises ValueError; the words go into error messages
and the docs. Nothing is imported or read here: see the table in `celery_outbox_steps.settings`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, NamedTuple

LOOPBACK = "127.0.0.1"


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value must be: `parse` returns it in its final type or raises ValueError."""

    words: str
    parse: Callable[[Any], Any]
    flag_type: type = str
    can_name: Callable[[Any], bool] | None = None
    """Whether a dotted path may name this object. None: a value of this kind is never a path."""
    is_secret: bool = False
    """Whether a value may hold a password, and is not shown in an error."""


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _boolean_if_installed(library: str) -> Callable[[Any], bool]:
    def parse(value: Any) -> bool:
        if _boolean(value) and find_spec(library) is None:
            raise ValueError
        return bool(value)

    return parse


def _integer(minimum: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ValueError
        return value

    return parse


def _seconds(minimum: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        if isinstance(value, timedelta):
            value = value.total_seconds()
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError
        if not math.isfinite(value) or value < minimum:
            raise ValueError
        return float(value)

    return parse


def _optional(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else parse(value)


def _path(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


def _path_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """The object itself, or the dotted path that names it."""
    return lambda value: value if is_valid(value) else _path(value)


def _several(parse: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """None, one value, a list of them, or a text with commas; each value once."""

    def parse_each(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            value = [each.strip() for each in value.split(",")]
        elif not isinstance(value, (list, tuple)):
            value = [] if value is None else [value]
        found: list[Any] = []
        for each in value:
            found += [parse(each)] if each not in found else []
        return tuple(found)

    return parse_each


def _address(value: Any) -> Address:
    """A port on the loopback interface, or HOST:PORT; an IPv6 address stands in brackets."""
    if isinstance(value, Address):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError
    host, colon, port = str(value).strip().rpartition(":")
    if not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65_535:
        raise ValueError
    return Address(_host(host) if colon else LOOPBACK, int(port))


def _host(text: str) -> str:
    bare = text.removeprefix("[").removesuffix("]")
    if not bare or text != (f"[{bare}]" if ":" in bare else bare):
        raise ValueError
    return bare


def _is_app(value: Any) -> bool:
    return hasattr(value, "conf") and hasattr(value, "send_task")


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError
    names = tuple(value)
    if not all(isinstance(name, str) and name for name in names):
        raise ValueError
    return names


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


TEXT = Kind("a text", _text)
BOOLEAN = Kind("True or False", _boolean, bool)
BOOLEAN_IF_STRUCTLOG = Kind(
    "False, or True if structlog is installed", _boolean_if_installed("structlog"), bool
)
COUNT = Kind("a whole number of at least 1", _integer(1), int)
MAYBE_COUNT = Kind("None or a whole number of at least 1", _optional(_integer(1)), int)
RETRIES = Kind("a whole number of at least 0", _integer(0), int)
SECONDS = Kind("a number of seconds above 0, or a timedelta", _seconds(1e-3), float)
PAUSE = Kind("a number of seconds of at least 0.01, or a timedelta", _seconds(0.01), float)
MAYBE_SECONDS = Kind(
    "None, a number of seconds above 0, or a timedelta", _optional(_seconds(1e-3)), float
)
MAYBE_HOLD = Kind(
    "None, a number of seconds of at least 0, or a timedelta", _optional(_seconds(0.0)), float
)
FILE = Kind("None or a file path", _optional(_path))
DOTTED = Kind("a dotted path or a callable", _path_of(callable), can_name=callable)
MAYBE_DOTTED = Kind(
    "None, a dotted path or a callable", _optional(_path_of(callable)), can_name=callable
)
SINKS = Kind(
    "None, a dotted path or a callable, or a list of these",
    _several(_path_of(callable)),
    can_name=callable,
)
MAYBE_ADDRESS = Kind(
    'None, a port, or "HOST:PORT" such as "0.0.0.0:9100" or "[::1]:9100"', _optional(_address)
)
MAYBE_APP = Kind(
    "None, a dotted path or a Celery app", _optional(_path_of(_is_app)), can_name=_is_app
)
NAMES = Kind("a list of names", _names)
MAYBE_NAMES = Kind("None or a list of names", _optional(_names))
