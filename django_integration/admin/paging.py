"""Lists and counts that read a bounded part of a table.

A condition without an index is only evaluated within a window: the first `WINDOW` rows along an
index. Counts stop as well, and above their limit the database's own estimate is shown. So a page
over a million rows costs what a page over the first hundred thousand does.
"""

# ruff: noqa: S608  SQL text is joined from our own names; values are always parameters
from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, Any

from django.core.paginator import Paginator
from django.db import connections, transaction
from django.db.models import F, Value
from django.utils.functional import cached_property

from django_integration.store.base import DIALECTS
from django_integration.store.postgresql import FOR_TRANSACTION
from django_integration.upstream.django import statement_of, where_clause_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from django.db.models import QuerySet

    AnyPaginator = Paginator[Any]
else:
    AnyPaginator = Paginator

WINDOW = 100_000
"""Rows that a condition without an index may read, in all its windows together."""
REACH = 10_000
"""The most rows that a list pages through, and that one action changes."""
SORTED_BY = "sorted_by_"
"""In front of the names of columns, as expressions that no index has."""


@contextmanager
def along_indexes(alias: str, planner: str = FOR_TRANSACTION) -> Iterator[None]:
    """Make PostgreSQL read along the indexes in this block, whatever its statistics say.

    For reading only: it ends with a rollback, which resets the planner's settings.
    """
    connection = connections[alias]
    if connection.vendor != "postgresql":
        yield
        return
    with transaction.atomic(using=alias):
        with connection.cursor() as cursor:
            cursor.execute(planner)
        yield
        transaction.set_rollback(True, using=alias)


def within_window(
    windows: Iterable[QuerySet[Any]], matching: QuerySet[Any], rows: QuerySet[Any]
) -> QuerySet[Any]:
    """The `rows` that match, among the first rows of each window, which names an index by its range
    and its order.

    The limit is part of the condition, where no planner can choose to read the whole table
    instead. The ids are looked up first, because MySQL takes no limit in a subquery of IN.
    """
    return rows_found(rows, ids_within(windows, matching))


def with_name(
    windows: Sequence[QuerySet[Any]], matching: QuerySet[Any], rows: QuerySet[Any], name: str
) -> QuerySet[Any]:
    """The same of the task with this name; if the windows have none, of those with it in theirs."""
    ids = ids_within(windows, matching.filter(task_name=name))
    return rows_found(rows, ids or ids_within(windows, matching.filter(task_name__icontains=name)))


def rows_found(rows: QuerySet[Any], ids: Sequence[int]) -> QuerySet[Any]:
    """The rows with these ids. No other condition: a planner might read all that it is true of."""
    sorted_by = {"id": F("id") + Value(0)}
    if hasattr(rows.model, "due_at"):
        sorted_by["due_at"] = F("due_at") + Value(timedelta(0))
    named: dict[str, Any] = {f"{SORTED_BY}{name}": value for name, value in sorted_by.items()}
    found: QuerySet[Any] = rows.filter(pk__in=ids).alias(**named)
    return found


def order_of(rows: QuerySet[Any], ordering: Sequence[Any]) -> list[Any]:
    """The order of a list, written so that a planner looks up `rows_found` by their ids and sorts
    them: along the index of that order, it might read the whole table for them."""
    if f"{SORTED_BY}id" not in rows.query.annotations:
        return list(ordering)
    return [
        f"{'-' if name[0] == '-' else ''}{SORTED_BY}{name.lstrip('-')}"
        for name in ordering
        if name.lstrip("-") in ("id", "due_at")
    ]


def ids_within(windows: Iterable[QuerySet[Any]], matching: QuerySet[Any]) -> list[int]:
    """The ids of these rows, at most one more than a list pages through: taken from the windows in
    turn, so that none hides what is in another."""
    every = list(windows)
    found = [_ids_within(along, WINDOW // len(every), matching) for along in every]
    in_turn = chain.from_iterable(zip_longest(*found))
    return list(islice((row_id for row_id in in_turn if row_id is not None), REACH + 1))


def _ids_within(along: Any, rows: int, matching: QuerySet[Any]) -> list[int]:
    connection = connections[along.db]
    quote = connection.ops.quote_name
    window, window_params = statement_of(along[:rows])
    where, where_params = where_clause_of(matching)
    # The window takes the table's name, so that a condition on the table is one on the window.
    table = quote(along.model._meta.db_table)
    order = ", ".join(
        f"{quote(name.lstrip('-'))}{' DESC' if name[0] == '-' else ''}"
        for name in along.query.order_by
    )
    with along_indexes(along.db), connection.cursor() as cursor:
        cursor.execute(
            f"SELECT id FROM ({window}) AS {table} WHERE {where} ORDER BY {order} LIMIT %s",
            [*window_params, *where_params, REACH + 1],
        )
        return [row[0] for row in cursor]


class CappedPaginator(AnyPaginator):
    """Pages over the first `REACH` rows. `total` says how many there are, as far as is known."""

    object_list: QuerySet[Any]
    window = f"{WINDOW:,}"
    """For the template: how many rows are searched for a name."""

    @cached_property
    def found(self) -> int:
        return self.object_list.order_by()[: REACH + 1].count()

    @cached_property
    def count(self) -> int:
        return min(self.found, REACH)

    @property
    def more(self) -> bool:
        """Whether there are rows behind the last page."""
        return self.found > REACH

    @cached_property
    def total(self) -> int | None:
        """The estimated number of rows; None for a filtered list, or without statistics."""
        if self.object_list.query.where:
            return None
        estimated = estimate(self.object_list.db, self.object_list.model._meta.db_table)
        return None if estimated is None else max(estimated, self.found)


def estimate(alias: str, table: str) -> int | None:
    """The estimated number of rows in a table; None if the database keeps no statistics."""
    connection = connections[alias]
    dialect = DIALECTS.get(connection.vendor)
    if dialect is None or not dialect.estimate_rows:
        return None
    with connection.cursor() as cursor:
        cursor.execute(dialect.estimate_rows, [table])
        found = cursor.fetchone()
    return None if found is None or found[0] is None else max(0, int(found[0]))
