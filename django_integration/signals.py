"""Django signals along the path of a message. Receivers can't hurt it: errors are logged only.

`outbox_message_created` fires when the row is written, before the commit. The other three fire in
the relay, after the settle committed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from django.dispatch import Signal

from celery_outbox_steps.messages import Dead, Outcome, Published, Retry

logger = logging.getLogger("celery_outbox")

outbox_message_created = Signal()
"""Arguments: task_id, task_name. Sender: the app's class."""
outbox_message_sent = Signal()
"""Arguments: task_id, task_name. Sender: `DjangoStore`."""
outbox_message_failed = Signal()
"""Arguments: task_id, task_name, retries (failed attempts so far). Sender: `DjangoStore`."""
outbox_message_dead_lettered = Signal()
"""Arguments: task_ids, task_names. Sender: `DjangoStore`."""


def emit(signal: Signal, sender: Any, **arguments: Any) -> None:
    """Send to all receivers; an error of one is logged and reaches nobody else."""
    if not signal.has_listeners(sender):
        return
    for receiver, error in signal.send_robust(sender, **arguments):
        if isinstance(error, Exception):
            logger.error(
                "celery_outbox_signal_error: a receiver raised %s", type(error).__name__,
                extra={"event": "celery_outbox_signal_error", "receiver": repr(receiver)},
                exc_info=error,
            )


def emit_settled(outcomes: Sequence[Outcome], sender: Any = None) -> None:
    """Tell the receivers what became of a batch, once that is committed."""
    dead = [outcome.message for outcome in outcomes if isinstance(outcome, Dead)]
    if dead:
        emit(outbox_message_dead_lettered, sender,
             task_ids=[message.task_id for message in dead],
             task_names=[message.task_name for message in dead])
    for outcome in outcomes:
        message = outcome.message
        if isinstance(outcome, Published):
            emit(outbox_message_sent, sender, task_id=message.task_id, task_name=message.task_name)
        elif isinstance(outcome, Retry):
            emit(outbox_message_failed, sender, task_id=message.task_id,
                 task_name=message.task_name, retries=message.retries + 1)
