"""The calls of one test, as a list, and the assertion that one of them was made; and its events.

Rows that were there before the test are not counted. Reads the tables and changes nothing;
`relaying.py` and `running.py` empty them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.envelope import EVENT_VERSION
from django_integration.models import (
    CeleryOutbox,
    CeleryOutboxDeadLetter,
    CeleryOutboxDelivery,
    CeleryOutboxQuerySet,
)
from django_integration.store.session import write_alias
from django_integration.testing.calls import Call, read_row
from django_integration.testing.events import Event, grouped, read_event

if TYPE_CHECKING:
    from collections.abc import Iterator

NOTHING_SENT = (
    "No task was sent in this test. A call in `transaction.on_commit` needs "
    "`self.captureOnCommitCallbacks(execute=True)` of Django's TestCase, or pytest-django's "
    "`django_capture_on_commit_callbacks(execute=True)`; with `task_always_eager` a task runs at "
    "once and is never stored."
)


class Outbox(Sequence[Call]):
    """The pending calls of this test, in order; `relayed` are those that were relayed or run.

    Those for destinations come after those for the app's own broker. `events` are the events.
    """

    def __init__(self, using: str | None = None) -> None:
        self.database = using or write_alias()
        self.relayed: list[Call] = []
        self.relayed_events: list[Event] = []
        """One for each destination that an event was relayed to."""
        self._last_before = self._newest(CeleryOutbox)
        self._last_delivery_before = self._newest(CeleryOutboxDelivery)
        self._last_dead_before = self._newest(CeleryOutboxDeadLetter)

    def __len__(self) -> int:
        return self.rows.count() + self._tasks_for_destinations().count()

    def __iter__(self) -> Iterator[Call]:
        return iter([read_row(row) for row in (*self.rows, *self._tasks_for_destinations())])

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __repr__(self) -> str:
        return f"<Outbox of {self.database!r}: {[str(call) for call in self]}>"

    @property
    def events(self) -> list[Event]:
        """The pending events, in order; one with several destinations is there once."""
        rows = self.delivery_rows.filter(schema_version=EVENT_VERSION)
        return grouped(read_event(row, row.destination) for row in rows)

    @property
    def delivery_rows(self) -> CeleryOutboxQuerySet[CeleryOutboxDelivery]:
        """The pending rows for destinations: one for each destination of an event, and tasks."""
        waiting = CeleryOutboxDelivery.objects.using(self.database).pending()
        return waiting.filter(pk__gt=self._last_delivery_before).order_by("pk")

    @property
    def rows(self) -> CeleryOutboxQuerySet[CeleryOutbox]:
        """The pending rows of calls for the app's own broker."""
        waiting = CeleryOutbox.objects.using(self.database).pending()
        return waiting.filter(pk__gt=self._last_before).order_by("pk")

    @property
    def scheduled(self) -> list[Call]:
        """The calls that are not due yet, the next one first."""
        return [read_row(row) for row in self.rows.scheduled().order_by("due_at", "pk")]

    @property
    def names(self) -> list[str]:
        return [call.task_name for call in self]

    @property
    def ids(self) -> list[str]:
        return [call.task_id for call in self]

    @property
    def dead_letters(self) -> list[CeleryOutboxDeadLetter]:
        """The messages that could not be published in this test, with their `failure_reason`."""
        letters = CeleryOutboxDeadLetter.objects.using(self.database)
        return list(letters.filter(pk__gt=self._last_dead_before).order_by("pk"))

    def using(self, database: str) -> Outbox:
        """The outbox in another database, from now on."""
        return Outbox(database)

    def _tasks_for_destinations(self) -> CeleryOutboxQuerySet[CeleryOutboxDelivery]:
        return self.delivery_rows.exclude(schema_version=EVENT_VERSION)

    def _newest(self, model: Any) -> int:
        newest = model.objects.using(self.database).order_by("-pk").first()
        return 0 if newest is None else newest.pk


class TaskSent:
    """An assertion that lists what was sent instead."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def __call__(
        self,
        name: Any,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        *,
        queue: str | None = None,
        count: int | None = None,
    ) -> Call:
        """The first call that fits. `name` may be the task itself; what is not given fits all.

        With `count=0` none may fit, and there is nothing to return.
        """
        __tracebackhide__ = True
        wanted = _Wanted(getattr(name, "name", name), args, kwargs, queue)
        sent: list[Call] = [*self._outbox.relayed, *self._outbox]
        fitting = [call for call in sent if wanted.fits(call)]
        if len(fitting) != count if count is not None else not fitting:
            raise AssertionError(_failure_text(wanted, len(fitting), sent))
        return fitting[0] if fitting else None  # type: ignore[return-value]  # with count=0


@dataclass(frozen=True)
class _Wanted:
    """What an assertion asks for; None fits anything."""

    name: str
    args: Sequence[Any] | None
    kwargs: dict[str, Any] | None
    queue: str | None

    def fits(self, call: Call) -> bool:
        return (
            call.task_name == self.name
            and (self.args is None or _plain(self.args) == _plain(call.args))
            and (self.kwargs is None or _plain(self.kwargs) == _plain(call.kwargs))
            and self.queue in (None, call.queue)
        )

    def __str__(self) -> str:
        pairs = [("args", self.args), ("kwargs", self.kwargs), ("queue", self.queue)]
        given = [f"{name}={value!r}" for name, value in pairs if value is not None]
        return f"{self.name} with {', '.join(given)}" if given else self.name


def _plain(value: Any) -> Any:
    """Tuples as lists: JSON, and with it Celery, does not tell them apart."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _failure_text(wanted: _Wanted, times: int, sent: list[Call]) -> str:
    if not sent:
        return f"{wanted} was not sent. {NOTHING_SENT}"
    verb = f"was sent {times} times" if times else "was not sent"
    listed = "\n".join(f"  {number}. {call}" for number, call in enumerate(sent, 1))
    return f"{wanted} {verb}. Sent in this test:\n{listed}"
