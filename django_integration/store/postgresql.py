"""PostgreSQL: the claim is one statement, and its plan can't read more than the batch.

A queue table's statistics are wrong much of the time (filled and emptied between two ANALYZEs, or
never analysed), and then the planner reads and sorts the whole table. So plans without the index
are switched off for the relay's own session; behind a pooler, only for the claim's transaction.
Next: `writes.py` settles what was claimed.
"""

# ruff: noqa: S608  SQL text is joined from our own names; values are always parameters
from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.messages import ClaimedMessage
from django_integration.store.dialect import LOCK_TIMEOUT, ClaimRequest, Dialect, LeasedRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_integration.schema import Lane
    from django_integration.store.session import Session
    from django_integration.store.watermark import Start

# jit: if a disabled plan is needed after all, its cost penalty would make PostgreSQL compile it.
PLANNER = ("enable_seqscan", "enable_bitmapscan", "enable_sort", "jit")
SET_LOCK_TIMEOUT = (
    "CASE WHEN current_setting('lock_timeout') = '0'"
    f" THEN set_config('lock_timeout', '{LOCK_TIMEOUT}s', {{local}}) END"
)
SETTINGS = ", ".join([*(f"set_config('{name}', 'off', {{local}})" for name in PLANNER),
                      SET_LOCK_TIMEOUT])  # fmt: skip
FOR_SESSION = (
    f"SELECT is_pooled, {SETTINGS.format(local='is_pooled')}"
    " FROM (SELECT pg_backend_pid() <> %s AS is_pooled) AS session"
)
"""One parameter: the process id that the client knows. A pooler invents one for its clients, and
its session is shared: there the settings last no longer than this statement."""
FOR_TRANSACTION = f"SELECT {SETTINGS.format(local='true')}"
LOCK_CONFLICT = ("40001", "40P01", "55P03", "57014")
"""The states of a serialization failure, a deadlock, a `lock_timeout` and a `statement_timeout`."""
IN_ERROR = 3
"""libpq's PQTRANS_INERROR: a statement failed, and a COMMIT would roll back."""
FOR_LIST = "SET LOCAL enable_seqscan = off; SET LOCAL jit = off"
"""For a page of the admin, where sorting is allowed: few rows, or rows in an index's order."""


class PostgreSQL(Dialect):
    vendor = "postgresql"
    from_now = "statement_timestamp() + %s * interval '1 second'"
    after = "{} + %s * interval '1 second'"
    seconds_waited = "extract(epoch from statement_timestamp() - created_at)::float8"
    seconds_held = "coalesce(extract(epoch from greatest(eta, created_at) - created_at), 0)::float8"
    iso_text = """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')"""
    seconds_until = "extract(epoch from {} - statement_timestamp())::float8"
    position = "extract(epoch from due_at)::float8"
    # octet_length() of a large text that is stored out of line does not read it.
    content_size = (
        "octet_length(args)::bigint + octet_length(kwargs) + octet_length(options)"
        " + coalesce(octet_length(payload), 0)"
    )
    from_watermark = "due_at >= to_timestamp(%s - 1) AND due_at >= to_timestamp(%s)"
    # The weakest that a claim respects, and the strongest that gets along with it: a transaction
    # that keeps a row may replace it later, without a deadlock with another that does the same.
    keep_lock = " FOR KEY SHARE"
    replace_lock = " FOR NO KEY UPDATE"
    wait_briefly = "SET LOCAL lock_timeout = '200ms'"
    unlocks_on_rollback = True
    list_of_k = "unnest(%s::text[]) AS wanted (k)"
    explain = "EXPLAIN (FORMAT JSON)"
    estimate_rows = "SELECT reltuples FROM pg_class WHERE oid = to_regclass(%s)"
    notifies = True
    _holds_any_text = True
    # Without these, a relay whose server vanished from the network waits for a quarter of an hour.
    options = {
        "connect_timeout": 10,
        "tcp_user_timeout": 30_000,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
    }

    @staticmethod
    def is_lock_conflict(error: Exception) -> bool:
        cause = error.__cause__
        return (getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)) in LOCK_CONFLICT

    @staticmethod
    def is_aborted(connection: Any) -> bool:
        return bool(connection.connection.info.transaction_status == IN_ERROR)

    def lease_rows(
        self, session: Session, request: ClaimRequest, start: Start | None
    ) -> list[LeasedRow]:
        statement = self.claim_statement(request, start)
        if self.pooled:
            with session.transaction():
                session.run(FOR_TRANSACTION)
                rows = session.rows(*statement)
        else:
            rows = session.rows(*statement)
        return [LeasedRow(row[0], ClaimedMessage(*row[1:])) for row in rows]

    def claim_statement(self, request: ClaimRequest, start: Start | None) -> tuple[str, list[Any]]:
        limit, lease, relay_id, most, adopt, orphans, lane = request
        from_watermark = start is not None
        sql = _claim_sql(self, lane, adopt=adopt, orphans=orphans, from_watermark=from_watermark)
        params = self.claimable_params(request, start)
        return sql, [relay_id, *params, limit, most, most, relay_id, lease]

    def configure_session(self, session: Session) -> None:
        self.pooled, *_ = session.rows(FOR_SESSION, [session.raw.info.backend_pid])[0]
        self.learn_encoding(session)

    def learn_encoding(self, session: Session) -> None:
        self._holds_any_text = session.raw.info.parameter_status("server_encoding") == "UTF8"

    def blocks_event_loop(self, wrapper: Any) -> bool:
        driver = wrapper.Database
        if driver.__name__ != "psycopg2":
            return False
        # psycogreen and similar libraries install a callback that waits cooperatively.
        return driver.extensions.get_wait_callback() is None

    def storable_text(self, text: str) -> str:
        clean = super().storable_text(text)
        return clean if self._holds_any_text else clean.encode("ascii", "backslashreplace").decode()

    def id_in(self, ids: Sequence[Any], column: str = "id") -> tuple[str, list[Any]]:
        return f"{column} = ANY(%s)", [list(ids)]

    def delete_by_id(self, table: str, ids: Sequence[int]) -> tuple[str, list[Any]]:
        return f"DELETE FROM {table} WHERE id = ANY(%s)", [list(ids)]


@lru_cache(maxsize=256)
def _claim_sql(
    dialect: PostgreSQL,
    lane: Lane,
    *,
    adopt: bool,
    orphans: bool,
    from_watermark: bool,
) -> str:
    # MATERIALIZED keeps the planner from running the SELECT twice, past the limit. A window without
    # ORDER BY adds up the rows as they come, which is the index's order, and needs no sort.
    #
    # A lease need not survive a crash of the server: without it the rows are claimed once more. So
    # the COMMIT of a claim does not wait for the disk. What a settle writes is always durable.
    claimable = dialect.claimable(lane, adopt=adopt, orphans=orphans, from_watermark=from_watermark)
    columns = dialect.claimed_columns(lane.table, "NOT oversized", "orphaned", "oversized")
    return f"""
        WITH due AS MATERIALIZED (
            SELECT id AS due_id, {dialect.content_size} AS size,
                coalesce(claimed_by <> %s, false) AS orphaned
            FROM {lane.table.name}
            WHERE {claimable}
            ORDER BY due_at, id
            LIMIT %s
            FOR UPDATE SKIP LOCKED
        ), summed AS (
            SELECT *, sum(size) OVER (ROWS UNBOUNDED PRECEDING) AS total FROM due
        ), fitting AS MATERIALIZED (
            SELECT due_id, orphaned, size > %s AS oversized
            FROM summed
            WHERE total <= %s OR total = size
        ), no_disk_wait AS MATERIALIZED (
            SELECT set_config('synchronous_commit', 'off', true)
        )
        UPDATE {lane.table.name}
        SET claimed_by = %s, claimed_until = {dialect.from_now}
        FROM fitting, no_disk_wait
        WHERE id = due_id
        RETURNING {dialect.position}, {columns}"""
