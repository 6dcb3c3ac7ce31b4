"""The calls of one `outbox_bulk()` block, or of a group, until their rows are written together."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from django.db import connections

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_integration.rows import Row


class Gathering:
    """Rows by database alias. Belongs to the thread that entered the block, and ends with it."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}
        self.is_open = True
        self._thread = get_ident()
        self._depths = {c.alias: _depth(c) for c in connections.all(initialized_only=True)}

    def takes(self, connection: BaseDatabaseWrapper) -> bool:
        """Only calls of the block's own transaction level can wait for its end.

        An inner `atomic()` may be rolled back alone, and then its rows must go with it. A copied
        context carries the block into threads with transactions of their own, and beyond its end.
        """
        return (
            self.is_open
            and self._thread == get_ident()
            and _depth(connection) == self._depths.get(connection.alias, 0)
        )

    def add(self, alias: str, rows: list[Row]) -> None:
        self.rows.setdefault(alias, []).extend(rows)


def _depth(connection: BaseDatabaseWrapper) -> int:
    return len(connection.savepoint_ids) + 1 if connection.in_atomic_block else 0
