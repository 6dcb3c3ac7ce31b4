"""Which database a page is about: one that holds an outbox, as the query string names it.

Every page reads and changes that one alone, and every link to another page keeps it. A name without
an outbox is refused: an action must not happen in another database than the one that was named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, urlencode

from django.contrib.admin.views.main import PAGE_VAR
from django.core.exceptions import SuspiciousOperation
from django.db import connections

from django_integration.admin.configuration import outbox_databases
from django_integration.store.session import write_alias

if TYPE_CHECKING:
    from django.http import HttpRequest

DATABASE = "database"
LIST_QUERY = "_changelist_filters"
"""Django's own: the query string of the list that a page was opened from."""


class Databases(NamedTuple):
    """The databases that hold an outbox, and the one that a request is about."""

    every: tuple[str, ...]
    chosen: str

    @property
    def query(self) -> dict[str, str]:
        """What keeps the choice in a link; nothing if there is none."""
        return {DATABASE: self.chosen} if len(self.every) > 1 else {}


class Choice(NamedTuple):
    """One link of the switch."""

    name: str
    url: str
    is_chosen: bool


def databases_of(request: HttpRequest) -> Databases:
    """Found once for each request. Raises `SuspiciousOperation` if it names another database."""
    known = vars(request)
    if "outbox_databases" not in known:
        known["outbox_databases"] = _choose(_named_by(request))
    found: Databases = known["outbox_databases"]
    return found


def alias_of(request: HttpRequest) -> str:
    """The database that a request is about."""
    return databases_of(request).chosen


def switch(request: HttpRequest, list_url: str = "") -> list[Choice]:
    """The links above a page, to the same list of each database; none if there is only one.

    The page of a message links to the lists: another database has other messages.
    """
    found = databases_of(request)
    if not found.query:
        return []
    kept = {} if list_url else request.GET.dict()
    kept.pop(PAGE_VAR, None)
    return [
        Choice(each, f"{list_url}?{urlencode({**kept, DATABASE: each})}", each == found.chosen)
        for each in found.every
    ]


def _choose(name: str | None) -> Databases:
    written = write_alias()
    aliases = outbox_databases()
    every = [written] if aliases is None else [each for each in aliases if each in connections]
    every = every or [written]
    if name is None:
        return Databases(tuple(every), written if written in every else every[0])
    if name not in every:
        raise SuspiciousOperation("the query string names a database without an outbox")
    return Databases(tuple(every), name)


def _named_by(request: HttpRequest) -> str | None:
    name = request.GET.get(DATABASE)
    if name is not None:
        return name
    return next(iter(parse_qs(request.GET.get(LIST_QUERY, "")).get(DATABASE, ())), None)
