"""PostgreSQL: the claim is one statement, and its plan can't read more than the batch.

A queue table's statistics are wrong much of the time (filled and emptied between two ANALYZEs, or
never analysed), and then the planner reads and sorts the whole table. So plans without the index
are switched off for the relay's own session; behind a pooler, only for the claim's transaction.
"""

# ruff: noqa: S608  SQL text is joined from names of ours; values are always parameters
from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.messages import ClaimedMessage
from django_integration.store.dialect import LOCK_TIMEOUT, OUTBOX, Dialect, Found, Order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_integration.store.session import Session
    from django_integration.store.watermark import Start

# jit: where a switched-off plan is needed after all, its penalty would look worth compiling.
PLANNER = ("enable_seqscan", "enable_bitmapscan", "enable_sort", "jit")
PATIENCE = (
    f"SELECT set_config('lock_timeout', '{LOCK_TIMEOUT}s', {{local}})"
    " WHERE current_setting('lock_timeout') = '0'"
)
FOR_SESSION = "; ".join([*(f"SET {n} = off" for n in PLANNER), PATIENCE.format(local="false")])
FOR_TRANSACTION = "; ".join(
    [*(f"SET LOCAL {n} = off" for n in PLANNER), PATIENCE.format(local="true")]
)


class PostgreSQL(Dialect):
    # Not clock_timestamp(): an index range needs a bound that stands still during the statement.
    # Not now(): in a transaction that is older than the row that it just wrote.
    now = "statement_timestamp()"
    later = "statement_timestamp() + %s * interval '1 second'"
    waited = "extract(epoch from statement_timestamp() - created_at)::float8"
    left = "extract(epoch from claimed_until - statement_timestamp())::float8"
    position = "extract(epoch from due_at)::float8"
    # Says how long a text is without reading it from where large ones are kept.
    size = (
        "octet_length(args)::bigint + octet_length(kwargs) + octet_length(options)"
        " + coalesce(octet_length(payload), 0)"
    )
    above = "due_at >= to_timestamp(%s - 1) AND due_at >= to_timestamp(%s)"
    estimate = """
        SELECT c.reltuples * (1 - coalesce(s.null_frac, 0))
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        LEFT JOIN pg_stats s ON s.schemaname = n.nspname AND s.tablename = c.relname
            AND s.attname = 'due_at'
        WHERE c.oid = 'celery_outbox'::regclass"""
    notifies = True
    _holds_any_text = True
    # Without them a relay whose server vanished from the network waits for a quarter of an hour.
    options = {
        "connect_timeout": 10,
        "tcp_user_timeout": 30_000,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
    }

    def claim(self, session: Session, order: Order, start: Start | None) -> list[Found]:
        statement = self.claim_statement(order, start)
        if not self.pooled:
            return [_found(*row) for row in session.rows(*statement)]
        with session.transaction():
            session.run(FOR_TRANSACTION)
            return [_found(*row) for row in session.rows(*statement)]

    def opened(self, session: Session) -> None:
        # A pooler makes up the process id that it tells its clients at startup.
        (actual,) = session.rows("SELECT pg_backend_pid()")[0]
        self.pooled = actual != session.raw.info.backend_pid
        self._holds_any_text = session.raw.info.parameter_status("server_encoding") == "UTF8"
        if not self.pooled:
            session.run(FOR_SESSION)

    def claim_statement(self, order: Order, start: Start | None) -> tuple[str, list[Any]]:
        due, params = self.due(order, start)
        limit, lease, relay_id, most, _ = order
        return _claim(self, due), [relay_id, *params, limit, most, most, relay_id, lease]

    def blocks_event_loop(self, wrapper: Any) -> bool:
        driver = wrapper.Database
        if driver.__name__ != "psycopg2":
            return False
        # psycogreen and its like install a callback that waits cooperatively.
        return driver.extensions.get_wait_callback() is None

    def text(self, text: str) -> str:
        clean = super().text(text)
        return clean if self._holds_any_text else clean.encode("ascii", "backslashreplace").decode()

    def ids(self, ids: Sequence[int]) -> tuple[str, list[Any]]:
        return "id = ANY(%s)", [list(ids)]


@lru_cache(maxsize=8)
def _claim(dialect: PostgreSQL, due: str) -> str:
    # MATERIALIZED keeps the planner from running the SELECT twice, past the limit. A window without
    # ORDER BY adds up the rows as they come, which is the index's order, and needs no sort.
    #
    # A lease need not survive a crash of the server: without it the rows are claimed once more. So
    # nobody waits for the disk between COMMIT and publish. What a settle writes is always durable.
    columns = dialect.columns("NOT oversized", "orphaned", "oversized")
    return f"""
        WITH due AS MATERIALIZED (
            SELECT id AS due_id, {dialect.size} AS size,
                coalesce(claimed_by <> %s, false) AS orphaned
            FROM {OUTBOX} WHERE {due}
            ORDER BY due_at, id LIMIT %s FOR UPDATE SKIP LOCKED
        ), summed AS (
            SELECT *, sum(size) OVER (ROWS UNBOUNDED PRECEDING) AS total FROM due
        ), fitting AS MATERIALIZED (
            SELECT due_id, orphaned, size > %s AS oversized FROM summed
            WHERE total <= %s OR total = size
        ), unhurried AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
        UPDATE {OUTBOX} SET claimed_by = %s, claimed_until = {dialect.later}
        FROM fitting, unhurried WHERE id = due_id
        RETURNING {dialect.position}, {columns}"""


def _found(position: float, *fields: Any) -> Found:
    return Found(position, ClaimedMessage._make(fields))
