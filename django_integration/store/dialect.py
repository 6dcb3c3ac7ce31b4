"""What differs between databases: clocks, id lists, sizes, and how a claim is written.

Everything else of the Store is the same SQL everywhere. All times are the database's own clock,
and a look at the due index always names the range that it reads. Statements take parameters with
`%s`; a literal percent sign is doubled. See `postgresql.py`, `mysql.py` and `sqlite.py`.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_outbox_steps.envelope import SUPPORTED_VERSIONS
from celery_outbox_steps.messages import CONTENTS, ClaimedMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_integration.store.session import Session
    from django_integration.store.watermark import Start

OUTBOX = "celery_outbox"
DEAD_LETTER = "celery_outbox_dead_letter"
LOCK_TIMEOUT = 20
"""Seconds that a relay waits for a lock, say that of an ALTER TABLE, unless the project sets less:
then the statement fails, is logged and is repeated, where it would hang without a sign."""
UNLEASED = "claimed_by = NULL, claimed_until = NULL"


class Order(NamedTuple):
    """What a claim is asked for."""

    limit: int
    lease: float
    relay_id: str
    max_bytes: int = sys.maxsize
    adopt: bool = False


class Found(NamedTuple):
    """A row that a claim took, and where it stood in the due index."""

    position: Any
    message: ClaimedMessage


class Dialect:
    """One database's words."""

    now: str
    later: str
    """So many seconds from now: one parameter."""
    waited: str
    """Seconds since the row was created, as a float."""
    left: str
    """Seconds until the lease ends, as a float."""
    position = "due_at"
    """The due time as the watermark keeps it."""
    size: str
    """About how many bytes a row's contents take; they are ASCII but for what others wrote."""
    above = ""
    """`due_at` is not below the `Start` of the watermark: two parameters."""
    hint = ""
    """Names the due index to an optimiser that may not find it."""
    by_id = ""
    """Names the primary key to an optimiser that may prefer to lock its way through the table."""
    named = "task_name LIKE %s ESCAPE '!'"
    """The task's name fits what `pattern` makes of a pattern, upper and lower case told apart."""
    for_update = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    estimate = ""
    """How many rows wait, by the database's own statistics."""
    begin_transaction = "BEGIN"
    options: dict[str, Any] = {}
    """Connection options that a relay wants, unless the project sets them."""
    notifies = False
    """Does the database wake those who LISTEN?"""
    pooled = False
    """Does a pooler hand each of our transactions to another session?"""
    watermark = True
    """Do deleted rows linger in the index, so that remembering where live ones begin pays?"""

    def claim(self, session: Session, order: Order, start: Start | None) -> list[Found]:
        """Lease what was ordered, from the watermark on, in any order."""
        raise NotImplementedError

    def opened(self, session: Session) -> None:
        """A connection of our own was just opened; nothing else ran on it yet."""

    def check(self, wrapper: Any) -> str:  # noqa: ARG002  most need what Django needs
        """What is too old here, and what to do about it; empty if nothing is."""
        return ""

    def blocks_event_loop(self, wrapper: Any) -> bool:  # noqa: ARG002  drivers differ
        """Does the driver hold up all greenlets while a statement runs?"""
        return False

    def ids(self, ids: Sequence[int]) -> tuple[str, list[Any]]:
        """A predicate that picks these rows, and its parameters."""
        return f"id IN ({', '.join(['%s'] * len(ids))})", list(ids)

    def delete(self, table: str, ids: Sequence[int]) -> tuple[str, list[Any]]:
        """A statement that deletes these rows, to be narrowed with AND, and its parameters."""
        which, params = self.ids(ids)
        return f"DELETE FROM {table} WHERE {which}", params  # noqa: S608  a table of ours

    def text(self, text: str) -> str:
        """Text as every database takes it: no NUL, no lone surrogates."""
        clean = text.replace("\x00", "\\x00")
        return clean.encode("utf-8", "backslashreplace").decode("utf-8")

    def pattern(self, text: str) -> str:
        """A pattern with `*` and `?`, as this database writes it."""
        for sign in "!%_":
            text = text.replace(sign, f"!{sign}")
        return text.replace("*", "%").replace("?", "_")

    def due(self, order: Order, start: Start | None) -> tuple[str, list[Any]]:
        """The rows that a claim may take, from the watermark on: the predicate, its parameters."""
        mine, me = (" OR claimed_by = %s", [order.relay_id]) if order.adopt else ("", [])
        sql = (
            f"due_at <= {self.now} AND (claimed_until IS NULL OR claimed_until < {self.now}{mine})"
            f" AND schema_version IN ({', '.join(['%s'] * len(SUPPORTED_VERSIONS))})"
        )
        if start is None:
            return sql, [*me, *SUPPORTED_VERSIONS]
        return f"{self.above} AND {sql}", [*start, *me, *SUPPORTED_VERSIONS]

    def columns(self, fits: str, orphaned: str, oversized: str) -> str:
        """The columns of `ClaimedMessage` in its order; the contents only where `fits` is true."""
        expressions = {
            **{name: f"CASE WHEN {fits} THEN {name} ELSE '' END" for name in CONTENTS},
            "payload": f"CASE WHEN {fits} THEN payload END",
            "waited": self.waited,
            "attempted": "updated_at IS NOT NULL",
            "orphaned": orphaned,
            "oversized": oversized,
        }
        return ", ".join(expressions.get(name, name) for name in ClaimedMessage._fields)


def with_contents(message: ClaimedMessage, contents: Sequence[Any]) -> ClaimedMessage:
    """The message with the values of its `CONTENTS`, as a statement brought them."""
    return message._replace(**dict(zip(CONTENTS, contents, strict=True)))


@cache
def content_columns() -> tuple[str, ...]:
    """The columns that an outbox row and a dead letter share."""
    from django_integration.models import StoredMessage

    fields = StoredMessage._meta.local_fields
    return tuple(str(field.column) for field in fields)
