"""The Django side of the outbox: `OutboxCelery`, the tables, the Store.

Importing this package needs no configured Django; the models load with the app registry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_integration.enqueue.app import OutboxCelery

__all__ = ["OutboxCelery"]


def __getattr__(name: str) -> Any:
    if name == "OutboxCelery":
        from django_integration.enqueue.app import OutboxCelery

        return OutboxCelery
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
