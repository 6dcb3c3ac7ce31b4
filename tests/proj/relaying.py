"""The rest of the path without a relay: rows out of the table, opened and really published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_outbox_steps.envelope import open_envelope
from celery_outbox_steps.messages import ClaimedMessage, Message
from celery_outbox_steps.publishers import publisher_for

if TYPE_CHECKING:
    from datetime import datetime


def rows(using: str = "default") -> list[Any]:
    """What the table holds, in the order of the calls."""
    from django_integration.models import CeleryOutbox

    return list(CeleryOutbox.objects.using(using).order_by("id"))


def claimed(row: Any) -> ClaimedMessage:
    """The row as a Store would hand it out."""
    values = {name: getattr(row, name, 0.0) for name in ClaimedMessage._fields}
    if row.payload is not None:
        values["payload"] = bytes(row.payload)
    if row.eta is not None:
        values["eta"] = row.eta.isoformat()
    return ClaimedMessage(**values)


def messages(now: datetime, using: str = "default") -> list[Message]:
    """Every stored message, as it would be published at `now`."""
    return [open_envelope(claimed(row), now) for row in rows(using)]


def publish_all(app: Any, now: datetime, using: str = "default") -> int:
    """Publish what is stored with the real publisher, and say how many it were."""
    found = rows(using)
    batch = [open_envelope(claimed(row), now) for row in found]
    receipts = list(publisher_for(app).publish(batch, timeout=20))
    errors = [receipt.error for receipt in receipts if receipt.error]
    assert not errors, errors
    assert len(receipts) == len(batch)
    for row in found:
        row.delete()
    return len(batch)
