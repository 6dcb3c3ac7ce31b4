"""The rest of the path without a relay: rows out of the table, opened and really published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_outbox_steps.envelope import open_envelope
from celery_outbox_steps.events import EventOpener
from celery_outbox_steps.messages import ClaimedMessage, Message
from celery_outbox_steps.publishers import publisher_for
from celery_outbox_steps.publishers.broker import Broker, connection_for, header_prefix
from celery_outbox_steps.settings import read

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


def deliveries(using: str = "default") -> list[Any]:
    """The messages for destinations, in the order of the calls."""
    from django_integration.models import CeleryOutboxDelivery

    return list(CeleryOutboxDelivery.objects.using(using).order_by("id"))


def delivered(app: Any, now: datetime) -> list[Message]:
    """Every message for a destination, as it would be published at `now`."""
    found = read(app.conf, "destinations")
    openers = {
        name: EventOpener(each, header_prefix(each, connection_for(each)), declare=True)
        for name, each in found.items()
    }
    return [openers[row.destination].open(claimed(row), now) for row in deliveries()]


def publish_deliveries(app: Any, now: datetime) -> int:
    """Publish them with the real publisher, to where they are for, and say how many it were."""
    rows, messages = deliveries(), delivered(app, now)
    for name, destination in read(app.conf, "destinations").items():
        broker = Broker(destination)
        batch = [each for row, each in zip(rows, messages, strict=True) if row.destination == name]
        receipts = list(publisher_for(broker).publish(batch, timeout=20))
        errors = [receipt.error for receipt in receipts if receipt.error]
        assert not errors, errors
        assert len(receipts) == len(batch)
        broker.close()
    for row in rows:
        row.delete()
    return len(rows)
