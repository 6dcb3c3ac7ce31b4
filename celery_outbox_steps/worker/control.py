"""Remote control: `celery inspect outbox`, `celery control outbox_pause | outbox_resume`.

The handlers run on the worker's main loop, so they read counters and set flags and never touch the
database or the broker. Importing this module registers them, in the worker and in the `celery`
command that calls them.
"""

from __future__ import annotations

from typing import Any

from celery.worker.control import control_command, inspect_command

from celery_outbox_steps.fleet import NO_REASON

NO_RELAY = "no relay in this worker; start it with --outbox-relay"


def _relays(state: Any) -> Any:
    """The worker's `RelayGroup`; None if it runs no relay."""
    relays = getattr(state.consumer.controller, "outbox_relays", None)
    return relays if relays is not None and relays.services else None


@inspect_command()  # type: ignore[untyped-decorator]
def outbox(state: Any, **_: Any) -> dict[str, Any]:
    """Show the state, the rate and the counters of the outbox relay."""
    relays = _relays(state)
    return {"relays": [], "note": NO_RELAY} if relays is None else {"relays": relays.info()}


@control_command(args=[("reason", str)], signature="[REASON]")  # type: ignore[untyped-decorator]
def outbox_pause(
    state: Any, reason: str = NO_REASON, *, whole: bool = False, **_: Any
) -> dict[str, str]:
    """Pause the outbox; with --destination, only that worker's relay. Until outbox_resume."""
    relays = _relays(state)
    if relays is None:
        return {"ok": NO_RELAY}
    if whole:
        relays.check_in_now(if_at_work=True)  # those that stand by need not know
        return {"ok": "outbox paused"}
    relays.pause(reason)
    return {"ok": "outbox relay paused"}


@control_command()  # type: ignore[untyped-decorator]
def outbox_resume(state: Any, *, whole: bool = False, **_: Any) -> dict[str, str]:
    """Resume the outbox; with --destination, only that worker's relay."""
    relays = _relays(state)
    if relays is None:
        return {"ok": NO_RELAY}
    relays.resume()  # also a relay that was paused alone
    if whole:
        relays.check_in_now(if_at_work=True)
    return {"ok": "outbox resumed" if whole else "outbox relay resumed"}


@control_command(visible=False)  # type: ignore[untyped-decorator]
def outbox_check_in(state: Any, **_: Any) -> None:
    """A relay that stops tells a few that stand by: its slot is free."""
    relays = _relays(state)
    if relays is not None:
        relays.check_in_now()
