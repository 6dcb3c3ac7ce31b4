"""What every suite needs: wait for a condition, and ask for a service.

Nothing here sleeps for a fixed time, and nothing here starts a server: `make test` does that,
or `python3 -m tests.services up`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.services import NAMES, TITLES, Service, programs
from tests.services.finder import MissingServiceError, find

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_ALIASES = {"postgresql": "postgres", "mariadb": "mysql", "amqp": "rabbitmq"}


@dataclass(frozen=True)
class Services:
    """The servers that respond; None for one that does not."""

    postgres: Service | None
    mysql: Service | None
    rabbitmq: Service | None
    redis: Service | None


def wait_for(
    condition: Callable[[], T],
    timeout: float = 10,
    message: str | Callable[[], str] = "the condition did not come true",
    pause: float = 0.02,
) -> T:
    """Poll until `condition()` is true and return its value; fail with `message` otherwise."""
    __tracebackhide__ = True
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            text = message() if callable(message) else message
            pytest.fail(f"{text} (waited {timeout:g} s; last value: {value!r})")
        time.sleep(pause)


def require_service(name: str) -> Service:
    """The service, or the test is skipped; in CI a missing service is a failure."""
    __tracebackhide__ = True
    found = _find_service(_ALIASES.get(name, name))
    if not isinstance(found, Service):
        raise _skip_or_fail(found)
    return found


def require_program(*names: str) -> str:
    """The path of a server program that a test starts itself, such as pgbouncer."""
    __tracebackhide__ = True
    found = programs.which(*names)
    if found is None:
        raise _skip_or_fail(f"the program {' or '.join(names)} is not installed")
    return found


def available_services() -> Services:
    """The services that respond (looked up once per process)."""
    found = {name: _find_service(name) for name in NAMES}
    return Services(**{n: s if isinstance(s, Service) else None for n, s in found.items()})


def describe_services() -> list[str]:
    """One readable line per service."""
    lines = []
    for name in NAMES:
        found = _find_service(name)
        text = f"{found.version} at {found.address}" if isinstance(found, Service) else "missing"
        lines.append(f"{TITLES[name]}: {text}")
    return lines


@cache
def _find_service(name: str) -> Service | str:
    try:
        return find(name)
    except MissingServiceError as missing:
        return str(missing)


def _skip_or_fail(reason: str) -> BaseException:
    if os.environ.get("CI"):
        text = f"{reason} (CI is set, so this is a failure and not a skip)"
        return pytest.fail.Exception(text, pytrace=False)
    return pytest.skip.Exception(reason)
