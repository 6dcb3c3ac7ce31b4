"""The Django side of the outbox: `OutboxCelery`, `once`, the tables, the Store.

Importing this package needs no configured Django: its names are resolved on first use, and the
models load with the app registry. A task call enters in `app.py`; the relay reads and settles rows
through `store/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_integration.ancestors import LineageFilter, lineage
    from django_integration.app import OutboxCelery
    from django_integration.enqueue.enqueuer import TransactionRequired
    from django_integration.inbox.once import once

__all__ = ["LineageFilter", "OutboxCelery", "TransactionRequired", "lineage", "once"]

_MODULES = {
    "LineageFilter": "ancestors",
    "OutboxCelery": "app",
    "TransactionRequired": "enqueue.enqueuer",
    "lineage": "ancestors",
    "once": "inbox.once",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
