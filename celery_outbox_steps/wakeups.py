"""The bell: whoever stores a row in the relay's own process wakes the relay at once.

RelayGroup attach under the name of their Store (the database alias); the enqueue side rings after
the commit. In a process without a relay, ringing is a dictionary look-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_relays: dict[str, set[Callable[[], None]]] = {}


def attach(name: str, wake: Callable[[], None]) -> None:
    _relays.setdefault(name, set()).add(wake)


def detach(name: str, wake: Callable[[], None]) -> None:
    _relays.get(name, set()).discard(wake)


def ring(name: str) -> None:
    for wake in tuple(_relays.get(name, ())):
        wake()
