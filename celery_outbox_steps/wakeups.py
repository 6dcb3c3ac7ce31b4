"""Wake-ups within a process: storing a row wakes the relay that runs in the same process.

Relays register under the name of their Store (the database alias); the enqueue side calls `wake`
after the commit. In a process without a relay, `wake` is one dictionary lookup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def for_destinations(name: str) -> str:
    """The name under which those who publish a Store's messages for destinations register."""
    return f"{name} (destinations)"


def for_destination(name: str, destination: str) -> str:
    """The same for one destination."""
    return f"{name} -> {destination}"


_relays: dict[str, set[Callable[[], None]]] = {}


def register(name: str, wake: Callable[[], None]) -> None:
    _relays.setdefault(name, set()).add(wake)


def unregister(name: str, wake: Callable[[], None]) -> None:
    _relays.get(name, set()).discard(wake)


def wake(name: str) -> None:
    for wake_relay in tuple(_relays.get(name, ())):
        wake_relay()
