"""A captured message as the texts of a row, and its arguments for the redactor.

Finds out where Celery's two protocols keep arguments, times and reprs. The row's format is that of
`celery_outbox_steps.envelope`; `enqueuer.py` writes the row.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from kombu.utils.json import loads

from celery_outbox_steps.envelope import Sealed, seal

if TYPE_CHECKING:
    from django_integration.enqueue.capture import CapturingProducer


def seal_captured(producer: CapturingProducer) -> Sealed:
    message, body = producer.messages[0], producer.body
    if len(producer.messages) > 1:
        message.event = producer.messages[1]
    # Protocol 2 has the times and the reprs in the headers, protocol 1 in the body.
    fields = body if isinstance(body, dict) else message.headers
    args, kwargs = _arguments(body)
    return seal(
        message,
        argsrepr=fields.get("argsrepr") or repr(args),
        kwargsrepr=fields.get("kwargsrepr") or repr(kwargs),
        eta=fields.get("eta"),
        expires=fields.get("expires"),
    )


def _arguments(body: Any) -> tuple[Any, Any]:
    return (body["args"], body["kwargs"]) if isinstance(body, dict) else (body[0], body[1])


def copy_arguments(sealed: Sealed, body: Any) -> tuple[Any, Any]:
    """Copies of the arguments, as a worker would get them."""
    if sealed.payload is None:
        return loads(sealed.args), loads(sealed.kwargs)
    args, kwargs = _arguments(body)
    return copy.deepcopy(args), copy.deepcopy(kwargs)
