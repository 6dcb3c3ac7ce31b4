"""Django signals for each step of a message. A receiver's error is logged and changes nothing else.

`outbox_message_created` is sent in the caller, when the row is written and before the commit. The
other three are sent by the relay through `SignalRecorder`, after the settle committed. Each names
the destination of its message, if there is one. Without receivers a batch costs three lookups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections
from django.dispatch import Signal

from celery_outbox_steps.messages import Dead, Published, Retry
from celery_outbox_steps.observe.log import log
from celery_outbox_steps.observe.recorder import Recorder, traced
from django_integration.store.base import DjangoStore
from django_integration.store.lane import LaneStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from celery_outbox_steps.messages import ClaimedMessage, Outcome

    Emit = Callable[[Sequence[ClaimedMessage], dict[str, str]], None]

outbox_message_created = Signal()
"""Arguments: task_id, task_name. Sender: the app's class."""
outbox_message_sent = Signal()
"""Arguments: task_id, task_name. Sender: `DjangoStore`."""
outbox_message_failed = Signal()
"""Arguments: task_id, task_name, retries (failed attempts so far). Sender: `DjangoStore`."""
outbox_message_dead_lettered = Signal()
"""Arguments: task_ids, task_names. Sender: `DjangoStore`."""


def emit_created(rows: Iterable[Any], sender: Any) -> None:
    """Tell the receivers about rows that were just written."""
    for row in rows:
        to = _to(row.destination)
        _send(outbox_message_created, sender, task_id=row.task_id, task_name=row.task_name, **to)


class SignalRecorder(Recorder):
    """Sends the relay's three signals. `OutboxConfig.ready()` registers it."""

    def on_settled(self, store: Any, outcomes: Sequence[Outcome]) -> None:
        if not isinstance(store, LaneStore):
            return
        emitters = {
            kind: emit
            for kind, (signal, emit) in _EMITTERS.items()
            if signal.has_listeners(DjangoStore)
        }
        for kind, emit in emitters.items():
            settled = [each.message for each in outcomes if isinstance(each, kind)]
            if settled:
                emit(settled, _to(store.destination))
        if emitters:
            _close_old_connections()


signal_recorder = SignalRecorder()


def _to(destination: str | None) -> dict[str, str]:
    """The argument that only messages for destinations have."""
    return {} if destination is None else {"destination": destination}


def _emit_sent(rows: Sequence[ClaimedMessage], to: dict[str, str]) -> None:
    for row in rows:
        _send(outbox_message_sent, DjangoStore, task_id=row.task_id, task_name=row.task_name, **to)


def _emit_failed(rows: Sequence[ClaimedMessage], to: dict[str, str]) -> None:
    for row in rows:
        _send(
            outbox_message_failed,
            DjangoStore,
            task_id=row.task_id,
            task_name=row.task_name,
            retries=row.retries + 1,
            **to,
        )


def _emit_dead_lettered(rows: Sequence[ClaimedMessage], to: dict[str, str]) -> None:
    _send(
        outbox_message_dead_lettered,
        DjangoStore,
        task_ids=[row.task_id for row in rows],
        task_names=[row.task_name for row in rows],
        **to,
    )


_EMITTERS: dict[type[Outcome], tuple[Signal, Emit]] = {
    Published: (outbox_message_sent, _emit_sent),
    Retry: (outbox_message_failed, _emit_failed),
    Dead: (outbox_message_dead_lettered, _emit_dead_lettered),
}


def _send(signal: Signal, sender: Any, **arguments: Any) -> None:
    """Send to all receivers; the error of one is logged and does not affect the others."""
    try:
        answers: list[tuple[Any, Any]] = traced(signal.send_robust, sender, **arguments)
    except Exception as exc:  # noqa: BLE001  Django fails on receivers without a __qualname__
        answers = [(signal, exc)]
    for receiver, answer in answers:
        if isinstance(answer, Exception):
            name = type(answer).__name__
            log("celery_outbox_signal_error", name, exc_info=answer, receiver=repr(receiver))


def _close_old_connections() -> None:
    """Close what receivers opened: Django does so after a request, and the relay has none.

    Not Django's own function: that also closes a connection in the transaction of a test.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
