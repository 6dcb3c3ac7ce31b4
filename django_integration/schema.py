"""The tables, defined once: their names, columns and clocks, and the states of a row.

A state is one object with two forms, SQL text for the Store and a `Q` for querysets, so that the
relay, the admin and the commands can't disagree; `tests/contract/test_states.py` compares them on
every database. Imports no model, so it can be imported before Django's apps are ready. Next:
`models.py` for the tables, `enqueue/rows.py` for the INSERT, `store/` for every other statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple

from django.db.models import Q
from django.db.models.functions import Now

from celery_outbox_steps.envelope import DELIVERY_VERSIONS, SCHEMA_VERSION, SUPPORTED_VERSIONS
from celery_outbox_steps.messages import ClaimedMessage
from celery_outbox_steps.wakeups import for_destinations

# -- names ----------------------------------------------------------------------------------------

APP_LABEL = "celery_outbox"
OUTBOX = "celery_outbox"
DEAD_LETTER = "celery_outbox_dead_letter"
DELIVERY = "celery_outbox_delivery"
INBOX = "celery_outbox_inbox"
RELAY = "celery_outbox_relay"
PAUSE = "celery_outbox_pause"
RATE = "celery_outbox_rate"
ORDER_LOCK = "celery_outbox_order_lock"
"""MySQL only: see `enqueue/order.py`."""
TABLES = (OUTBOX, DEAD_LETTER, DELIVERY, INBOX, RELAY, PAUSE, RATE)
KEY_INDEX = "celery_outbox_key"
ORDER_INDEX = "celery_outbox_dlv_order"
DEAD_ORDER_INDEX = "celery_outbox_dl_order"


class MessageTable(NamedTuple):
    """A table of messages that wait to be published."""

    name: str
    due_index: str
    task_id_index: str
    freed: str
    """The column that a row has a value in only as long as it waits."""
    channel: str
    """PostgreSQL's NOTIFY channel."""
    versions: tuple[int, ...]
    """The schema versions that a relay understands."""

    def wake_up_name(self, alias: str) -> str:
        """Under which its relays in this process are woken."""
        return alias if self.name == OUTBOX else for_destinations(alias)


TASKS = MessageTable(
    OUTBOX,
    "celery_outbox_due",
    "celery_outbox_task_id",
    "outbox_key",
    "celery_outbox",
    SUPPORTED_VERSIONS,
)
"""Messages for the app's own broker."""
DELIVERIES = MessageTable(
    DELIVERY,
    "celery_outbox_dlv_due",
    "celery_outbox_dlv_task_id",
    "order_key",
    "celery_outbox_delivery",
    DELIVERY_VERSIONS,
)
"""Messages for destinations."""


class Lane(NamedTuple):
    """The rows that one relay publishes: those for the app's own broker, or for a destination."""

    table: MessageTable
    destination: str | None = None

    @property
    def rows(self) -> str:
        """The condition that selects them, in front of others; `params` are its parameters."""
        return "" if self.destination is None else "destination = %s AND "

    @property
    def params(self) -> list[str]:
        return [] if self.destination is None else [self.destination]


OWN_BROKER = Lane(TASKS)
CHANNEL = TASKS.channel
HELD_PAYLOAD = "held"
NOTIFY = f"pg_notify('{CHANNEL}', '')"
"""Rows are due."""
NOTIFY_HELD = f"pg_notify('{CHANNEL}', '{HELD_PAYLOAD}')"
"""Rows are due soon: the relay has to look when."""
NOTIFY_DESTINATION = f"pg_notify('{DELIVERIES.channel}', destination)"
"""Rows for a destination are due, or due soon."""

# -- columns --------------------------------------------------------------------------------------


class When(NamedTuple):
    """When a held call is due: at a time, or some seconds from now. The other field is None."""

    eta: str | None
    """In UTC, as text without an offset."""
    countdown: float | None
    """Counted by the database's clock."""


class Key(NamedTuple):
    """The key of a call: at most one row with it waits."""

    text: str
    """As stored."""
    replace: bool
    """Whether it takes the place of a row that waits; otherwise that is kept."""
    result: Any
    """The caller's, which is told what became of the call."""


class Row(NamedTuple):
    """What a call stores. Field names are column names, except `when` and `key`."""

    task_id: str
    task_name: str
    args: str
    kwargs: str
    options: str
    payload: bytes | None
    redacted_args: str | None
    redacted_kwargs: str | None
    sentry_trace_id: str | None
    sentry_baggage: str | None
    structlog_context: str | None
    when: When | None = None
    """None: due at once."""
    key: Key | None = None
    destination: str | None = None
    """None: the app's own broker."""
    order_key: str | None = None
    """Messages of one destination with the same key are published in the order of their commits."""
    schema_version: int = SCHEMA_VERSION

    @property
    def table(self) -> MessageTable:
        return TASKS if self.destination is None else DELIVERIES


CALL_COLUMNS = Row._fields[: Row._fields.index("when")]
MESSAGE_COLUMNS = (*CALL_COLUMNS, "eta", "created_at", "schema_version", "retries")
"""The columns that an outbox row and a dead letter share, except the id."""
CLAIMED_COLUMNS = ClaimedMessage._fields[: ClaimedMessage._fields.index("waited")]
"""The columns that a claim reads. The other fields of a `ClaimedMessage` are computed."""

# -- clocks ---------------------------------------------------------------------------------------
#
# All times are the database's, in UTC. Which of its clocks is read differs on purpose:
#
# INSERT_NOW  is the moment of the INSERT itself. PostgreSQL's other clocks do not advance during a
#             transaction or a statement: all rows of a long one would be due at its start.
# NOW         does not advance during a statement, as the bound of an index range requires: that
#             rules out clock_timestamp(). It advances within a transaction: that rules out now(),
#             which would be older than a row that this transaction has just written.
# DatabaseNow is NOW for the ORM. Django's own `Now()` follows the session's time zone on MySQL.

_SQLITE_NOW = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')"  # the text format of Django's times
NOW = {
    "postgresql": "statement_timestamp()",
    "mysql": "UTC_TIMESTAMP(6)",
    "sqlite": _SQLITE_NOW,
}
INSERT_NOW = {**NOW, "postgresql": "clock_timestamp()"}

ETA = {
    "postgresql": "coalesce(%s::timestamp AT TIME ZONE 'UTC',"
    " clock_timestamp() + %s::float8 * interval '1 second')",
    "mysql": "COALESCE(CAST(%s AS DATETIME(6)),"
    " UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND)",
    "sqlite": "coalesce(%s,"
    " strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', round(%s, 3) || ' seconds'))",
}
"""The time of a `When`: its two fields are the parameters. NULL if both are."""
DUE_AT_ETA = {
    "postgresql": f"greatest({INSERT_NOW['postgresql']}, {ETA['postgresql']})",
    "mysql": f"COALESCE(GREATEST({NOW['mysql']}, {ETA['mysql']}), {NOW['mysql']})",
    "sqlite": f"coalesce(max({NOW['sqlite']}, {ETA['sqlite']}), {NOW['sqlite']})",
}
"""When such a row is due: at its time, and not before now. Same parameters."""

FAR = {
    "postgresql": "'9999-01-01 00:00:00+00'",
    "mysql": "'9999-01-01 00:00:00'",
    "sqlite": "'9999-01-01 00:00:00'",
}
"""The `due_at` of a row that is held back until another one with the same `order_key` is published.
No call can have this time as its eta."""
HELD_BACK_UNTIL = datetime(9999, 1, 1, tzinfo=timezone.utc)
"""The same for the ORM."""

LOOK_AHEAD = 1.0
"""Seconds between two looks of an idle relay at the next due time, at least. It looks only when it
polls, so at most `idle_time` more. It has to be told about a row that is due before that."""


class DatabaseNow(Now):
    """`NOW` as an expression of the ORM."""

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template=NOW["mysql"], **context)


# -- states ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """A condition on an outbox row, as SQL text and as a `Q`. `&` joins two."""

    text: str
    """The SQL, with `{now}` for the clock and `{far}` for the time of rows that are held back."""
    q: Q

    def __and__(self, other: State) -> State:
        return State(f"{self.text} AND {other.text}", self.q & other.q)

    def sql(self, vendor: str) -> str:
        """The condition as this database writes it."""
        return self.text.replace("{now}", NOW[vendor]).replace("{far}", FAR[vendor])


LEASED = State("claimed_until >= {now}", Q(claimed_until__gte=DatabaseNow()))
UNLEASED = State(
    "(claimed_until IS NULL OR claimed_until < {now})", ~Q(claimed_until__gte=DatabaseNow())
)
DUE_TIME_REACHED = State("due_at <= {now}", Q(due_at__lte=DatabaseNow()))
DUE_TIME_AHEAD = State(
    "due_at > {now} AND due_at < {far}",
    Q(due_at__gt=DatabaseNow()) & Q(due_at__lt=HELD_BACK_UNTIL),
)
NEVER_ATTEMPTED = State("updated_at IS NULL", Q(updated_at__isnull=True))

PENDING = State("due_at IS NOT NULL", Q(due_at__isnull=False))
"""Not published yet: waiting, scheduled, in flight, backing off or held back."""
PUBLISHED = State("due_at IS NULL", Q(due_at__isnull=True))
"""Published, and kept for the retention time."""
DUE = DUE_TIME_REACHED & UNLEASED
"""Publishable now, and held by no relay."""
IN_FLIGHT = PENDING & LEASED
"""Leased to a relay."""
WANTED_LATER = State(
    "(updated_at IS NULL OR eta > {now})", Q(updated_at__isnull=True) | Q(eta__gt=DatabaseNow())
)
POSTPONED = State(
    "(updated_at IS NOT NULL AND (eta IS NULL OR eta <= {now}))",
    Q(updated_at__isnull=False) & ~Q(eta__gt=DatabaseNow()),
)
"""Attempted, and not given another time since: if it is not due, it waits because of that."""
SCHEDULED = DUE_TIME_AHEAD & UNLEASED & WANTED_LATER
"""Not due yet: stored for later, or rescheduled."""
BACKING_OFF = DUE_TIME_AHEAD & UNLEASED & POSTPONED
"""Not due yet: after a failure, or because the broker was unavailable."""
HELD_BACK = State("due_at >= {far}", Q(due_at__gte=HELD_BACK_UNTIL)) & UNLEASED
"""Waits until another row with the same `order_key` is published."""
UNCLAIMED = PENDING & UNLEASED
"""Held by no relay, due or not: may be cancelled or given another time."""
UNHELD = PENDING & State("claimed_by IS NULL", Q(claimed_by__isnull=True))
"""No relay holds it, and none that held it last can still settle it: calls with its key may be
dropped for it, or take its place."""
UNTOUCHED = State("claimed_by IS NULL", Q(claimed_by__isnull=True)) & NEVER_ATTEMPTED
"""No relay ever held it: its message certainly never left."""
FAILING = PENDING & State("retries > 0", Q(retries__gt=0))
"""At least one attempt failed, and another one will follow. Overlaps the states above."""

ROW_STATES = {
    "waiting": DUE,
    "scheduled": SCHEDULED,
    "in_flight": IN_FLIGHT,
    "backing_off": BACKING_OFF,
    "held_back": HELD_BACK,
    "published": PUBLISHED,
}
"""Every row is in exactly one of these."""
