"""Lists and counts that never read more of a table than a person could.

A condition that has no index is only ever asked of a window: so many rows along an index, and then
it stops. Counts stop as well, and what is larger is the database's own estimate. So a page over a
million rows costs what a page over the first hundred thousand does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.paginator import Paginator
from django.db import connections
from django.utils.functional import cached_property

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.models import QuerySet

    AnyPaginator = Paginator[Any]
else:
    AnyPaginator = Paginator

WINDOW = 100_000
"""Rows that a condition without an index may look at."""
REACH = 10_000
"""Rows that people can page through, and the most that one action takes."""

ESTIMATES = {
    "postgresql": "SELECT reltuples FROM pg_class WHERE oid = to_regclass(%s)",
    "mysql": "SELECT table_rows FROM information_schema.tables"
    " WHERE table_schema = DATABASE() AND table_name = %s",
}


def windowed(rows: QuerySet[Any], ordering: Sequence[str], field: str = "") -> QuerySet[Any]:
    """The first `WINDOW` rows in this order, as a range of the index that has it.

    `field` names the column that the range is on; by default the first one of the order.
    """
    leading = next(name for name in ordering if name.lstrip("-") == field or not field)
    column = leading.lstrip("-")
    edge = rows.order_by(*ordering).values_list(column, flat=True)[WINDOW : WINDOW + 1]
    for last in edge:
        return rows.filter(**{f"{column}__{'gte' if leading[0] == '-' else 'lte'}": last})
    return rows


class CappedPaginator(AnyPaginator):
    """Pages over the first `REACH` rows. `total` says how many there are, as far as is known."""

    object_list: QuerySet[Any]

    @cached_property
    def found(self) -> int:
        return self.object_list[: REACH + 1].count()

    @cached_property
    def count(self) -> int:
        return min(self.found, REACH)

    @property
    def more(self) -> bool:
        """Are there rows behind the last page?"""
        return self.found > REACH

    @cached_property
    def total(self) -> int | None:
        """About how many rows the table has; None where only "more than that" is known."""
        if self.object_list.query.where:
            return None
        guess = estimate(self.object_list.db, self.object_list.model._meta.db_table)  # noqa: SLF001
        return None if guess is None else max(guess, self.found)


def estimate(alias: str, table: str) -> int | None:
    """How many rows the database believes a table to have, where it has such a belief."""
    connection = connections[alias]
    statement = ESTIMATES.get(connection.vendor)
    if statement is None:
        return None
    with connection.cursor() as cursor:
        cursor.execute(statement, [table])
        found = cursor.fetchone()
    return None if found is None or found[0] is None else max(0, int(found[0]))
