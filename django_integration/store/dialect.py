"""What differs between databases: durations, id lists, sizes, and how a claim is written.

The rest of the Store is the same SQL for all databases. All times are the database's own clock, and
a query on the due index always names the range that it reads. Statements take parameters with `%s`;
a literal percent sign is doubled. See `postgresql.py`, `mysql.py` and `sqlite.py` for what each
database needs, and docs/reference/sql for the statements in full.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_outbox_steps.messages import CONTENTS, ClaimedMessage
from django_integration.schema import (
    CLAIMED_COLUMNS,
    DELIVERIES,
    DUE_TIME_REACHED,
    INBOX,
    NOW,
    ORDER_INDEX,
    OWN_BROKER,
    UNLEASED,
    Lane,
    MessageTable,
    State,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_integration.store.session import Session
    from django_integration.store.watermark import Start

LOCK_TIMEOUT = 20
"""Seconds that a relay waits for a lock, such as that of an ALTER TABLE, unless the project sets
less. Then the statement fails, is logged and is repeated, instead of hanging silently."""


class ClaimRequest(NamedTuple):
    """What a claim asks for."""

    limit: int
    lease: float
    relay_id: str
    max_bytes: int = sys.maxsize
    adopt: bool = False
    orphans: bool = True
    lane: Lane = OWN_BROKER


class LeasedRow(NamedTuple):
    """A row that a claim took. Sorts as rows are due: by due time, then by id."""

    position: Any
    """Its due time, as the watermark keeps it."""
    message: ClaimedMessage


class Dialect:
    """The SQL of one database."""

    vendor: str
    from_now: str
    """The time this number of seconds from now: one parameter."""
    after: str
    """The time this number of seconds after that in a column: a format, one parameter."""
    seconds_waited: str
    """Seconds since the row was created, as a float."""
    seconds_held: str
    """Seconds from the row's creation to its `eta`; 0 if it has none."""
    iso_text: str
    """The time in a column in ISO 8601, with the offset of UTC: a format, for the column's name."""
    seconds_until: str
    """Seconds until the time in a column, as a float: a format, for the column's name."""
    position = "due_at"
    """The due time as the watermark keeps it."""
    content_size: str
    """The approximate bytes of a row's contents: ASCII, unless other programs wrote the row."""
    from_watermark = ""
    """`due_at` is not below the `Start` of the watermark: two parameters."""
    index_hint = ""
    """Makes the optimiser read along an index: a format, for its name."""
    lookup_hint = ""
    """Makes the optimiser look rows up in an index: a format, for its name."""
    list_of_k = ""
    """A table with one column, `k`: one parameter, the `list_param()` of texts."""
    take_write_lock = ""
    """Waits for the only lock that there is. After a read, a statement could not wait for it."""
    primary_key_hint = ""
    """Makes the optimiser look rows up by id, where it might scan and lock the whole table."""
    task_name_matches = "task_name LIKE %s ESCAPE '!'"
    """The task's name fits a `like_pattern`, case-sensitively: one parameter."""
    for_update = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    keep_lock = " FOR UPDATE"
    """Keeps a row from being claimed. Transactions that only want that need not exclude others."""
    replace_lock = " FOR UPDATE"
    wait_briefly = ""
    """Makes a transaction give up soon if it has to wait for the lock of a row."""
    returns_inserted = True
    """Whether an INSERT that leaves rows out returns those that it wrote."""
    unlocks_on_rollback = False
    """Whether a rollback to a savepoint releases the locks of rows."""
    stray_lock = ""
    """The lock that stays on a row that a statement had to look at and did not want: on one that
    changed while a locking read waited for it, or whose key an INSERT met."""
    explain = ""
    """In front of a SELECT: its plan in JSON, with the number of rows that is expected."""
    estimate_rows = ""
    """The estimated number of rows of a table, from the database's statistics: one parameter."""
    on_inbox_conflict = "ON CONFLICT (inbox_key) DO UPDATE SET"
    """What an INSERT does with an entry of the inbox that exists; assignments follow."""
    loses_transactions = False
    """Whether a deadlock rolls a transaction back, and the next statement begins another one."""
    delete_entries = f"DELETE FROM {INBOX}"  # noqa: S608  our own name
    begin_transaction = "BEGIN"
    options: dict[str, Any] = {}
    """Connection options for a relay, unless the project sets them."""
    notifies = False
    """Whether the database wakes sessions that LISTEN."""
    pooled = False
    """Whether a pooler may run each of our transactions in another session."""
    watermark = True
    """Whether deleted rows stay in the index for a while, so that claims should skip them."""

    @property
    def now(self) -> str:
        return NOW[self.vendor]

    @staticmethod
    def is_lock_conflict(error: Exception) -> bool:
        """Whether a statement failed only because another transaction was in its way: it was
        refused, or it had waited for as long as the database allows."""
        raise NotImplementedError

    @staticmethod
    def is_aborted(connection: Any) -> bool:  # noqa: ARG004  not all databases abort one
        """Whether the transaction of this connection can't be committed any more."""
        return False

    def lease_rows(
        self, session: Session, request: ClaimRequest, start: Start | None
    ) -> list[LeasedRow]:
        """Lease due rows, from the watermark on. Returns them in any order."""
        raise NotImplementedError

    def configure_session(self, session: Session) -> None:
        """Called for each connection of our own, before anything else runs on it."""

    def learn_encoding(self, session: Session) -> None:
        """What `storable_text` has to know of this connection, which is open."""

    def check(self, wrapper: Any) -> str:  # noqa: ARG002  most need no more than Django does
        """Why this server is too old, and what to do about it; empty if it is not."""
        return ""

    def blocks_event_loop(self, wrapper: Any) -> bool:  # noqa: ARG002  drivers differ
        """Whether the driver blocks all greenlets while a statement runs."""
        return False

    def along_due(self, table: MessageTable) -> str:
        """The table, read along its due index."""
        return self.along(table.due_index, table.name)

    def along(self, index: str, table: str) -> str:
        """The table, read along an index."""
        return f"{table}{self.index_hint.format(index)}"

    def by(self, index: str, table: str) -> str:
        """The table, with single rows looked up in an index."""
        return f"{table}{self.lookup_hint.format(index)}"

    def first_by_key(self, keys: Sequence[str], destination: str) -> tuple[str, list[Any]]:
        """A statement that finds the first message of each key: key, and id or NULL.

        It reads one row for each, however many a key has.
        """
        table = self.along(ORDER_INDEX, DELIVERIES.name)
        sql = (
            f"SELECT k, (SELECT id FROM {table}"  # noqa: S608  our own names
            f" WHERE destination = %s AND order_key = k ORDER BY id LIMIT 1) FROM {self.list_of_k}"
        )
        return sql, [destination, self.list_param(keys)]

    def list_param(self, values: Sequence[str]) -> Any:
        return list(values)

    def is_state(self, state: State) -> str:
        """The condition of a state."""
        return state.sql(self.vendor)

    def id_in(self, ids: Sequence[Any], column: str = "id") -> tuple[str, list[Any]]:
        """A condition that selects these rows, and its parameters."""
        return f"{column} IN ({', '.join(['%s'] * len(ids))})", list(ids)

    def delete_by_id(self, table: str, ids: Sequence[int]) -> tuple[str, list[Any]]:
        """A statement that deletes these rows, to be narrowed with AND, and its parameters."""
        selected, params = self.id_in(ids)
        return f"DELETE FROM {table} WHERE {selected}", params  # noqa: S608  one of our tables

    def storable_text(self, text: str) -> str:
        """Text that every database accepts: no NUL, no lone surrogates."""
        clean = text.replace("\x00", "\\x00")
        return clean.encode("utf-8", "backslashreplace").decode("utf-8")

    def like_pattern(self, text: str) -> str:
        """A pattern with `*` and `?`, as this database writes it."""
        for sign in "!%_":
            text = text.replace(sign, f"!{sign}")
        return text.replace("*", "%").replace("?", "_")

    def claimable(self, lane: Lane, *, adopt: bool, orphans: bool, from_watermark: bool) -> str:
        """The rows that a claim may take; `claimable_params()` are its parameters."""
        conditions = [
            *([self.from_watermark] if from_watermark else []),
            self.is_state(DUE_TIME_REACHED),
            self._free(adopt=adopt, orphans=orphans),
            f"schema_version IN ({', '.join(['%s'] * len(lane.table.versions))})",
        ]
        return lane.rows + " AND ".join(conditions)

    @staticmethod
    def claimable_params(request: ClaimRequest, start: Start | None) -> list[Any]:
        own = [request.relay_id] if request.adopt or not request.orphans else []
        return [*request.lane.params, *(start or ()), *own, *request.lane.table.versions]

    def _free(self, *, adopt: bool, orphans: bool) -> str:
        """The rows whose lease does not keep them from a claim. One parameter, unless orphans, but
        not the relay's own leased rows, are free: its id."""
        unleased, own = self.is_state(UNLEASED), "claimed_by = %s"
        if orphans:
            return f"({unleased} OR {own})" if adopt else unleased
        unclaimed = "claimed_until IS NULL"
        return f"({unclaimed} OR {own})" if adopt else f"{unleased} AND ({unclaimed} OR {own})"

    def claimed_columns(self, table: MessageTable, fits: str, orphaned: str, oversized: str) -> str:
        """The columns of `ClaimedMessage` in its order; the contents only where `fits` is true."""
        contents = {name: f"CASE WHEN {fits} THEN {name} ELSE '' END" for name in CONTENTS}
        contents["payload"] = f"CASE WHEN {fits} THEN payload END"
        contents["eta"] = self.iso_text.format("eta")
        times = self.seconds_waited, self.seconds_held
        computed = (*times, "updated_at IS NOT NULL", orphaned, oversized)
        ordered = ("order_key",) if table is DELIVERIES else ()
        stored = (contents.get(name, name) for name in CLAIMED_COLUMNS)
        return ", ".join([*stored, *computed, *ordered])


def with_contents(message: ClaimedMessage, contents: Sequence[Any]) -> ClaimedMessage:
    """The message with the values of its `CONTENTS`, as a statement returned them."""
    return message._replace(**dict(zip(CONTENTS, contents, strict=True)))
