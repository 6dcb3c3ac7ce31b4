"""The tables: messages to publish, dead letters, the inbox, relays, pauses, release rates.

Names, clocks and states come from `schema.py`; a state is a method of `CeleryOutbox.objects`. The
hot paths (enqueue, claim, settle) write SQL of their own, see `django_integration.enqueue.rows` and
`django_integration.store`. The admin and tests read through these models.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from django.db import models

from django_integration import schema
from django_integration.schema import APP_LABEL, DatabaseNow

__all__ = [
    "APP_LABEL",
    "CeleryOutbox",
    "CeleryOutboxDeadLetter",
    "CeleryOutboxDelivery",
    "CeleryOutboxInbox",
    "CeleryOutboxPause",
    "CeleryOutboxQuerySet",
    "CeleryOutboxRate",
    "CeleryOutboxRelay",
    "DatabaseNow",  # migrations import it from here
    "StoredMessage",
    "WaitingMessage",
]


class StoredMessage(models.Model):
    """What rows and dead letters share: the message, and the context that it was sent in."""

    task_id = models.CharField(max_length=255)
    task_name = models.CharField(max_length=255)
    # Text and never jsonb: the message must come out byte for byte as kombu wrote it.
    args = models.TextField()
    kwargs = models.TextField()
    options = models.TextField()
    payload = models.BinaryField(null=True)
    redacted_args = models.TextField(null=True)
    redacted_kwargs = models.TextField(null=True)
    eta = models.DateTimeField(null=True)
    created_at = models.DateTimeField(default=DatabaseNow)
    retries = models.PositiveIntegerField(default=0)
    schema_version = models.PositiveSmallIntegerField(default=1)
    sentry_trace_id = models.TextField(null=True)
    sentry_baggage = models.TextField(null=True)
    structlog_context = models.TextField(null=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.task_name}[{self.task_id}]"

    @property
    def visible_args(self) -> str:
        """The positional arguments for display: redacted if there is a redactor."""
        return self.args if self.redacted_args is None else self.redacted_args

    @property
    def visible_kwargs(self) -> str:
        """The keyword arguments for display: redacted if there is a redactor."""
        return self.kwargs if self.redacted_kwargs is None else self.redacted_kwargs


Waiting = TypeVar("Waiting", bound="WaitingMessage")


class CeleryOutboxQuerySet(models.QuerySet[Waiting]):
    """The states of a row, by the database's clock."""

    def pending(self) -> CeleryOutboxQuerySet[Waiting]:
        """Not published yet: waiting, scheduled, in flight, backing off or held back."""
        return self.filter(schema.PENDING.q)

    def due(self) -> CeleryOutboxQuerySet[Waiting]:
        """Publishable now, and held by no relay."""
        return self.filter(schema.DUE.q)

    def in_flight(self) -> CeleryOutboxQuerySet[Waiting]:
        """Leased to a relay."""
        return self.filter(schema.IN_FLIGHT.q)

    def scheduled(self) -> CeleryOutboxQuerySet[Waiting]:
        """Not due yet: stored for later, or rescheduled."""
        return self.filter(schema.SCHEDULED.q)

    def backing_off(self) -> CeleryOutboxQuerySet[Waiting]:
        """Not due yet: after a failure, or because the broker was unavailable."""
        return self.filter(schema.BACKING_OFF.q)

    def held_back(self) -> CeleryOutboxQuerySet[Waiting]:
        """Waits until an earlier message with the same `order_key` is published."""
        return self.filter(schema.HELD_BACK.q)

    def failing(self) -> CeleryOutboxQuerySet[Waiting]:
        """At least one attempt failed, and another one will follow."""
        return self.filter(schema.FAILING.q)

    def published(self) -> CeleryOutboxQuerySet[Waiting]:
        """Published, and kept for the retention time."""
        return self.filter(schema.PUBLISHED.q)


class WaitingMessage(StoredMessage):
    """What both tables of waiting messages have besides: when, which relay has it, its error."""

    due_at = models.DateTimeField(null=True, default=DatabaseNow)
    updated_at = models.DateTimeField(null=True)
    # The lease stays out of every index, so that PostgreSQL can claim with HOT updates.
    claimed_by = models.CharField(max_length=255, null=True)
    claimed_until = models.DateTimeField(null=True)
    last_error = models.TextField(null=True)
    published_at = models.DateTimeField(null=True)
    # Whether it has waited for its turn because of a release rate.
    paced = models.BooleanField(null=True)

    # The manager has the methods of its QuerySet, which only django-stubs' mypy plugin would know.
    objects: ClassVar[CeleryOutboxQuerySet[Any]] = CeleryOutboxQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        abstract = True


class CeleryOutbox(WaitingMessage):
    """A message for the app's own broker that the caller's transaction committed."""

    outbox_key = models.CharField(max_length=255, null=True)

    objects: ClassVar[CeleryOutboxQuerySet[CeleryOutbox]]

    class Meta:
        app_label = APP_LABEL
        db_table = schema.OUTBOX
        verbose_name = "outbox message"
        indexes = [
            models.Index(fields=["due_at", "id"], name=schema.TASKS.due_index),
            models.Index(fields=["task_id"], name=schema.TASKS.task_id_index),
        ]
        constraints = [
            # The migration makes it an index without the rows that have no key, where it can.
            models.UniqueConstraint(fields=["outbox_key"], name=schema.KEY_INDEX),
        ]


class CeleryOutboxDelivery(WaitingMessage):
    """A message for one destination: an event, or a task of another Celery installation."""

    destination = models.CharField(max_length=255)
    order_key = models.CharField(max_length=255, null=True)

    objects: ClassVar[CeleryOutboxQuerySet[CeleryOutboxDelivery]]

    class Meta:
        app_label = APP_LABEL
        db_table = schema.DELIVERY
        verbose_name = "message for a destination"
        verbose_name_plural = "messages for destinations"
        indexes = [
            models.Index(fields=["destination", "due_at", "id"], name=schema.DELIVERIES.due_index),
            models.Index(fields=["task_id"], name=schema.DELIVERIES.task_id_index),
            # The migration leaves rows without a key out, where it can.
            models.Index(fields=["destination", "order_key", "id"], name=schema.ORDER_INDEX),
        ]


class CeleryOutboxDeadLetter(StoredMessage):
    """A message that could not be published, or whose task failed, with the reason."""

    dead_at = models.DateTimeField(default=DatabaseNow)
    failure_reason = models.TextField()
    # NULL is "message": relays of earlier releases do not know this column.
    kind = models.CharField(max_length=255, null=True)
    traceback = models.TextField(null=True)
    # Of a message for a destination: where it was for, its key, and its place among those.
    destination = models.CharField(max_length=255, null=True)
    order_key = models.CharField(max_length=255, null=True)
    position = models.BigIntegerField(null=True)

    class Meta:
        app_label = APP_LABEL
        db_table = schema.DEAD_LETTER
        verbose_name = "dead letter"
        indexes = [
            models.Index(fields=["dead_at"], name="celery_outbox_dl_dead_at"),
            models.Index(fields=["task_id"], name="celery_outbox_dl_task_id"),
            # The migration leaves rows without a key out, where it can.
            models.Index(fields=["destination", "order_key"], name=schema.DEAD_ORDER_INDEX),
        ]


class CeleryOutboxInbox(models.Model):
    """Work that is done, or being done in an open transaction, and must not be done again."""

    inbox_key = models.CharField(max_length=255, primary_key=True)
    task_name = models.CharField(max_length=255)
    created_at = models.DateTimeField(default=DatabaseNow)
    expires_at = models.DateTimeField()
    duplicates = models.PositiveIntegerField(default=0)
    # The return value as kombu serialised it; all NULL if it was None.
    content_type = models.CharField(max_length=255, null=True)
    content_encoding = models.CharField(max_length=255, null=True)
    result = models.BinaryField(null=True)

    class Meta:
        app_label = APP_LABEL
        db_table = schema.INBOX
        verbose_name = "inbox entry"
        verbose_name_plural = "inbox entries"
        indexes = [models.Index(fields=["expires_at"], name="celery_outbox_inbox_expires")]

    def __str__(self) -> str:
        return f"{self.task_name} {self.inbox_key}".strip()


class CeleryOutboxRelay(models.Model):
    """A member of the fleet: a relay that is at work, stands by, or was there lately.

    Members write their own rows when they check in. No index but the two that decide: PostgreSQL
    can update such a row without touching an index.
    """

    relay_id = models.CharField(max_length=255, primary_key=True)
    worker = models.CharField(max_length=255)
    version = models.CharField(max_length=255)
    state = models.CharField(max_length=255)
    slot = models.SmallIntegerField(null=True, unique=True)
    started_at = models.DateTimeField(default=DatabaseNow)
    seen_at = models.DateTimeField(default=DatabaseNow)
    expires_at = models.DateTimeField(default=DatabaseNow)
    turn_at = models.DateTimeField(null=True)
    rate = models.FloatField(default=0.0)
    counters = models.TextField(default="{}")
    last_error = models.TextField(null=True)

    class Meta:
        app_label = APP_LABEL
        db_table = schema.RELAY
        verbose_name = "relay"

    def __str__(self) -> str:
        return self.worker or self.relay_id


class CeleryOutboxRate(models.Model):
    """What the relays have used of a release rate, and until when waiting rows are planned."""

    name = models.CharField(max_length=255, primary_key=True)
    per_second = models.FloatField()
    used_until = models.DateTimeField(default=DatabaseNow)
    planned_until = models.DateTimeField(default=DatabaseNow)

    class Meta:
        app_label = APP_LABEL
        db_table = schema.RATE
        verbose_name = "release rate"

    def __str__(self) -> str:
        return self.name


class CeleryOutboxPause(models.Model):
    """While this row exists, the destination of its name is paused in this database.

    The empty name pauses the whole outbox.
    """

    name = models.CharField(max_length=255, primary_key=True)
    reason = models.TextField()
    paused_by = models.CharField(max_length=255)
    paused_at = models.DateTimeField(default=DatabaseNow)

    class Meta:
        app_label = APP_LABEL
        db_table = schema.PAUSE
        verbose_name = "pause"

    def __str__(self) -> str:
        return f"{self.name or 'all'}: {self.reason}"
