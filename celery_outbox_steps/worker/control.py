"""Remote control: `celery inspect outbox`, `celery control outbox_pause | outbox_resume`.

The handlers run on the worker's main loop, so they read counters and set flags and never touch the
database or the broker. Importing this module registers them, on both sides of the wire.
"""

from __future__ import annotations

from typing import Any

from celery.worker.control import control_command, inspect_command

NOT_HERE = {"error": "this worker runs no outbox relay; start it with --outbox-relay"}


def _services(state: Any) -> list[Any]:
    relays = getattr(state.consumer.controller, "outbox_relays", None)
    return [] if relays is None else relays.services


@inspect_command()  # type: ignore[untyped-decorator]
def outbox(state: Any, **_: Any) -> Any:
    """Show the state, the rate and the counters of the outbox relay."""
    return [service.info() for service in _services(state)] or NOT_HERE


@control_command(args=[("reason", str)], signature="[REASON]")  # type: ignore[untyped-decorator]
def outbox_pause(state: Any, reason: str = "", **_: Any) -> Any:
    """Pause the outbox relay until outbox_resume."""
    services = _services(state)
    for service in services:
        service.pause(reason)
    return {"ok": "outbox relay paused"} if services else NOT_HERE


@control_command()  # type: ignore[untyped-decorator]
def outbox_resume(state: Any, **_: Any) -> Any:
    """Resume the outbox relay."""
    services = _services(state)
    for service in services:
        service.resume()
    return {"ok": "outbox relay resumed"} if services else NOT_HERE
