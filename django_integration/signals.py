"""Django signals along the path of a message. Receivers can't hurt it: errors are logged only.

`outbox_message_created` fires in the caller, when the row is written and before the commit. The
other three fire in the relay's thread, after the settle committed. Where nobody listens, a batch
costs three look-ups.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import current_app
from django.db import connections
from django.dispatch import Signal

from celery_outbox_steps.messages import Dead, Outcome, Published, Retry
from celery_outbox_steps.observe.suppression import traced
from celery_outbox_steps.settings import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

logger = logging.getLogger("celery_outbox")

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
    if outbox_message_created.has_listeners(sender):
        for row in rows:
            emit(outbox_message_created, sender, task_id=row.task_id, task_name=row.task_name)


def emit_settled(outcomes: Sequence[Outcome], sender: Any = None) -> None:
    """Tell the receivers what became of a batch, once that is committed."""
    told = [tell(outcomes, sender) for tell in (_tell_sent, _tell_failed, _tell_dead)]
    if any(told):
        _close_old_connections()


def emit(signal: Signal, sender: Any, **arguments: Any) -> None:
    """Send to all receivers; an error of one is logged and reaches nobody else."""
    try:
        answers: list[tuple[Any, Any]] = traced(signal.send_robust, sender, **arguments)
    except Exception as exc:  # noqa: BLE001  Django stumbles over receivers without a __qualname__
        answers = [(signal, exc)]
    for receiver, answer in answers:
        if isinstance(answer, Exception):
            _complain(receiver, answer)


def _close_old_connections() -> None:
    """The relay's thread has no requests, whose end would close what a receiver has opened.

    Not Django's own function: that one also closes what a test's transaction is running on.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _complain(receiver: Any, error: Exception) -> None:
    logger.error(
        "celery_outbox_signal_error: a receiver raised %s; the message is not affected",
        type(error).__name__,
        extra={"event": "celery_outbox_signal_error", "receiver": repr(receiver)},
        exc_info=error if read(current_app.conf, "log_tracebacks") else None,
    )


def _tell_sent(outcomes: Sequence[Outcome], sender: Any) -> bool:
    heard = outbox_message_sent.has_listeners(sender)
    for message in (each.message for each in outcomes if heard and isinstance(each, Published)):
        emit(outbox_message_sent, sender, task_id=message.task_id, task_name=message.task_name)
    return heard


def _tell_failed(outcomes: Sequence[Outcome], sender: Any) -> bool:
    heard = outbox_message_failed.has_listeners(sender)
    for message in (each.message for each in outcomes if heard and isinstance(each, Retry)):
        emit(
            outbox_message_failed,
            sender,
            task_id=message.task_id,
            task_name=message.task_name,
            retries=message.retries + 1,
        )
    return heard


def _tell_dead(outcomes: Sequence[Outcome], sender: Any) -> bool:
    heard = outbox_message_dead_lettered.has_listeners(sender)
    dead = [each.message for each in outcomes if heard and isinstance(each, Dead)]
    if dead:
        emit(
            outbox_message_dead_lettered,
            sender,
            task_ids=[message.task_id for message in dead],
            task_names=[message.task_name for message in dead],
        )
    return heard
