"""The outbox relay as Celery bootsteps.

    app.steps["worker"].add(OutboxRelayStep)

and `celery -A proj worker --outbox-relay`. Knows Celery and kombu, and no Django.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_outbox_steps.worker.options import install
    from celery_outbox_steps.worker.steps import OutboxRelayStep

__all__ = ["OutboxRelayStep", "install"]

_WHERE = {"OutboxRelayStep": "worker.steps", "install": "worker.options"}


def __getattr__(name: str) -> Any:
    # Lazy: the enqueue side imports single modules of this package, not the whole worker.
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
