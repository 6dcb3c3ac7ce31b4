"""The outbox relay as Celery bootsteps: a worker publishes the rows of an outbox table.

    app.steps["worker"].add(OutboxRelayStep)

Then run `celery -A proj worker --outbox-relay`. This package depends on Celery and kombu and never
imports Django. The path of a message through the relay begins in `worker.steps`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_outbox_steps.worker.options import install
    from celery_outbox_steps.worker.steps import OutboxRelayStep

__all__ = ["OutboxRelayStep", "install"]

_MODULES = {"OutboxRelayStep": "worker.steps", "install": "worker.options"}


def __getattr__(name: str) -> Any:
    # Lazy: the enqueue side imports single modules of this package, not the whole worker.
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
