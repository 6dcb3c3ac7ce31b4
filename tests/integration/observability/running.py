"""What several of these tests do with a relay: count its looks, and run what it published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.app import trace

if TYPE_CHECKING:
    from collections.abc import Callable


def run_task(app: Any, message: Any) -> None:
    """The task, from the message's own headers, as a worker's pool would run it."""
    task = app.tasks["shop.ship_order"]
    run = trace.build_tracer(task.name, task, app=app)  # looked up now: Sentry replaces it
    request = {**message.headers, "is_eager": True}
    assert run(message.headers["id"], [], {}, request).info is None  # what a success leaves


def count_claims(relay: Any) -> Callable[[], int]:
    """How often the relay has looked for rows from now on."""
    counted = [0]
    claim = relay.store.claim

    def claim_counted(*args: Any, **options: Any) -> Any:
        counted[0] += 1
        return claim(*args, **options)

    relay.store.claim = claim_counted
    return lambda: counted[0]
