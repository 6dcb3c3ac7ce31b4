"""The values that travel from row to broker and back: data, no behaviour.

A Store returns `ClaimedMessage`s, the envelope turns each into a `Message`, a publisher answers
each with a `Receipt`, and the relay turns receipts into `Outcome`s, which the Store settles.
Nothing here depends on a database, a broker or a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

ETA_HEADER = "outbox_eta"
"""The header of a held message: the time that its call was wanted at, in ISO 8601."""
CONTEXT_HEADER = "outbox_context"
"""The header with the caller's structlog variables as JSON, if `structlog_bind_in_tasks` is on."""
LINEAGE_HEADER = "outbox_lineage"
"""The header with the ids of a task's ancestors as a JSON list, if `lineage` is on."""


class CallerContext(NamedTuple):
    """The context of a call that is stored with its row. Field names are column names."""

    sentry_trace_id: str | None = None
    sentry_baggage: str | None = None
    structlog_context: str | None = None


NO_CONTEXT = CallerContext()


class ClaimedMessage(NamedTuple):
    """One row, leased to this relay. Its texts are not parsed yet, and not trusted."""

    id: int
    task_id: str
    task_name: str
    args: str
    kwargs: str
    options: str
    payload: bytes | None
    retries: int
    schema_version: int
    sentry_trace_id: str | None
    sentry_baggage: str | None
    structlog_context: str | None
    eta: str | None
    """The time that a held call was wanted at, in ISO 8601; None for all others."""
    waited: float
    """Seconds from the row's creation to this claim, by the database's clock."""
    held: float = 0.0
    """How many of these seconds passed before the row was due for the first time."""
    attempted: bool = False
    """An earlier attempt was made, and failed or was interrupted."""
    orphaned: bool = False
    """Another relay held the row until its lease expired. Stays true while it is only deferred."""
    oversized: bool = False
    """The contents exceed the size limit of a claim. `Store.begin_attempt()` loads them."""
    order_key: str | None = None
    """Messages for one destination with the same key are published in the order of their ids."""

    @property
    def may_kill(self) -> bool:
        """Whether it may have killed a relay, or may kill one by its size."""
        return self.orphaned or self.oversized

    @property
    def has_history(self) -> bool:
        """Whether it is published alone, because an attempt failed or because it may kill."""
        return self.attempted or self.may_kill


CALLER_CONTEXT = slice(
    ClaimedMessage._fields.index(CallerContext._fields[0]),
    ClaimedMessage._fields.index(CallerContext._fields[-1]) + 1,
)
"""The positions of `CallerContext`'s fields in a `ClaimedMessage`."""
CONTENTS = ("args", "kwargs", "options", "payload")
"""The fields that hold the message, and that may be large."""


@dataclass(slots=True)
class Message:
    """What is sent to the broker: exactly what Celery would have sent."""

    body: bytes
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    """AMQP basic properties: delivery_mode, correlation_id, reply_to, expiration (str, ms), …"""
    priority: int | None
    exchange: str
    routing_key: str
    mandatory: bool = False
    declare: tuple[Any, ...] = ()
    """kombu entities that must exist before this message is published."""
    expired: bool = False
    """Its `expires` has passed: a worker would not run it any more."""
    event: Message | None = None
    """The `task-sent` event, which is sent after the message (`task_send_sent_event`)."""
    is_task: bool = True
    """False: an event of the project, which has nothing of Celery in it."""


class Receipt(NamedTuple):
    """A publisher's answer for one message: its error, or None if the broker accepted it."""

    position: int
    """The index of the message in the sequence that was given to the publisher."""
    error: Exception | None = None


class Published(NamedTuple):
    """The broker has accepted responsibility for the message."""

    message: ClaimedMessage


class Retry(NamedTuple):
    """This message failed; try it again after `delay` seconds, with one more retry spent."""

    message: ClaimedMessage
    error: str
    delay: float


class Dead(NamedTuple):
    """This message is not tried again: it becomes a dead letter."""

    message: ClaimedMessage
    error: str
    attempts: int
    """The number of failed attempts, including this one."""


class Deferred(NamedTuple):
    """The broker or the queue was unavailable: again after `delay` seconds, no retry spent."""

    message: ClaimedMessage
    error: str
    delay: float


class Expired(NamedTuple):
    """The call expired while it was held: it is not published, and the row is deleted."""

    message: ClaimedMessage


Outcome = Published | Retry | Dead | Deferred | Expired


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What one tick of the relay did."""

    outcomes: tuple[Outcome, ...] = ()
    claimed: int = 0
    published: int = 0
    retried: int = 0
    dead: int = 0
    deferred: int = 0
    expired: int = 0
    paced: int = 0
    """Rows that went back into the table until their turn, because of a release rate."""
    released: int = 0
    fenced: int = 0
    """Rows that another relay had taken over before this one could settle them."""
    full: bool = False
    """The claim reached its limit, so more rows are probably waiting."""
    outage: str = ""
    """Why the broker counts as unavailable; empty if it does not."""
    duration: float = field(default=0.0, compare=False)
