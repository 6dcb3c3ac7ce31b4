"""Messages with a key: what a held-back one waits for, and how many wait behind one to be deleted.

Read-only. The rules are those of `store/order.py`: the earliest message of a key that is not
published holds the others back, be it a row or a dead letter. All lookups go along the index of the
keys, once for all the rows of a page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.models import OuterRef, Subquery
from django.utils.html import format_html

from django_integration.admin.formatting import failure, one_line
from django_integration.admin.paging import along_indexes
from django_integration.models import CeleryOutboxDeadLetter, CeleryOutboxDelivery
from django_integration.store.postgresql import FOR_LIST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_integration.admin.links import Links

MOST_BEHIND = 10_000
"""A count of those that wait behind others stops here."""
ITS_TURN = "its turn has come: a relay looks for such messages every few seconds"


class Barrier(NamedTuple):
    """The earliest message of a key that is not published."""

    message: Any
    """A row of `CeleryOutboxDelivery` or a dead letter."""
    url: str
    """Its page; empty if the user may not see it."""


def find_what_they_wait_for(rows: Sequence[Any], links: Links) -> None:
    """Give each held-back row its `waits_for`: a `Barrier`, or None if it waits for no other."""
    held_back = {row.pk: row for row in rows if row.state == "held_back"}
    if not held_back:
        return
    alias = rows[0]._state.db
    for row_id, barrier in _barriers(list(held_back), alias).items():
        held_back[row_id].waits_for = barrier and Barrier(
            barrier, links.message(type(barrier), barrier.pk)
        )
    for row in held_back.values():  # one that was published meanwhile
        vars(row).setdefault("waits_for", None)


def link_to(barrier: Barrier | None) -> str:
    """In a list."""
    if barrier is None:
        return "a relay: its turn has come"
    return _linked(barrier.url, f"{_noun(barrier.message)} {barrier.message.pk}")


def description_of(barrier: Barrier | None) -> str:
    """On the page of the message that waits."""
    if barrier is None:
        return ITS_TURN
    earlier = barrier.message
    is_dead = isinstance(earlier, CeleryOutboxDeadLetter)
    return format_html(
        "{}: {}{}<div>{}</div>",
        _linked(barrier.url, f"{_noun(earlier)} {earlier.pk}"),
        one_line(str(earlier)),
        ", until it is replayed or discarded" if is_dead else "",
        failure(earlier.retries, getattr(earlier, ERRORS[type(earlier)])),
    )


def count_behind(model: type[Any], alias: str, ids: Sequence[int]) -> int:
    """How many messages wait behind these, at most `MOST_BEHIND`: those with their keys."""
    if model not in PLACES:
        return 0
    place = PLACES[model]
    chosen = _rows(model, alias).filter(pk__in=ids, order_key__isnull=False)
    keyed = list(chosen.values_list("destination", "order_key", place))
    if not keyed:
        return 0
    destinations, keys, places = map(set, zip(*keyed, strict=True))
    behind = _rows(CeleryOutboxDelivery, alias).filter(
        destination__in=destinations, order_key__in=keys, pk__gt=min(each or 0 for each in places)
    )
    if model is CeleryOutboxDelivery:
        behind = behind.exclude(pk__in=ids)
    with along_indexes(alias):
        return int(behind[:MOST_BEHIND].count())


def _barriers(ids: list[int], alias: str) -> dict[int, Any]:
    """By id, the earliest message of the row's key; None if that is the row itself."""
    same_key = {"destination": OuterRef("destination"), "order_key": OuterRef("order_key")}
    first = _rows(CeleryOutboxDelivery, alias).filter(**same_key).order_by("pk")
    dead = _rows(CeleryOutboxDeadLetter, alias).filter(**same_key).order_by("position")
    rows = _rows(CeleryOutboxDelivery, alias).filter(pk__in=ids)
    with along_indexes(alias, FOR_LIST):
        found = list(
            rows.annotate(
                first=Subquery(first.values("pk")[:1]),
                dead=Subquery(dead.values("pk")[:1]),
                place=Subquery(dead.values("position")[:1]),
            ).values_list("pk", "first", "dead", "place")
        )
    earliest = {row_id: _earliest(row_id, *each) for row_id, *each in found}
    messages: dict[Any, Any] = {}
    for model in PLACES:
        wanted = {pk for kind, pk in earliest.values() if kind is model}
        messages |= {(model, each.pk): each for each in _without_contents(model, alias, wanted)}
    return {row_id: messages.get(each) for row_id, each in earliest.items()}


PLACES: dict[type[Any], str] = {CeleryOutboxDelivery: "pk", CeleryOutboxDeadLetter: "position"}
"""The models of messages that may have a key, and where each has its place among others."""
ERRORS: dict[type[Any], str] = {
    CeleryOutboxDelivery: "last_error",
    CeleryOutboxDeadLetter: "failure_reason",
}


def _earliest(
    row_id: int, first: int | None, dead: int | None, place: int | None
) -> tuple[type[Any], int]:
    """The model and the id of the message that comes first. The id is 0 if that is the row."""
    places = ((first, CeleryOutboxDelivery, first), (place, CeleryOutboxDeadLetter, dead))
    before = [(at, model, pk) for at, model, pk in places if at is not None and at < row_id]
    _, model, pk = min(before, key=lambda each: each[0], default=(0, CeleryOutboxDelivery, 0))
    return model, pk or 0


def _without_contents(model: type[Any], alias: str, ids: set[int]) -> list[Any]:
    if not ids:
        return []
    columns = ("task_id", "task_name", "retries", ERRORS[model])
    return list(_rows(model, alias).filter(pk__in=ids).only(*columns))


def _rows(model: type[Any], alias: str) -> Any:
    return model._default_manager.using(alias)


def _noun(message: Any) -> str:
    return "dead letter" if isinstance(message, CeleryOutboxDeadLetter) else "message"


def _linked(url: str, text: str) -> str:
    return format_html('<a href="{}">{}</a>', url, text) if url else text
