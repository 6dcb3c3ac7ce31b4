"""The Django side of the outbox: `OutboxCelery`, the tables, the Store.

Importing this package needs no configured Django; the models load with the app registry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_integration.enqueue.app import OutboxCelery
    from django_integration.enqueue.enqueuer import TransactionRequired

__all__ = ["OutboxCelery", "TransactionRequired"]

_WHERE = {"OutboxCelery": "enqueue.app", "TransactionRequired": "enqueue.enqueuer"}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
