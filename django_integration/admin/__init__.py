"""The outbox, messages for destinations, dead letters and relays in Django's admin.

Read-only and redacted. Viewing takes the model's *view* permission, *retry now*, *send now* and
*replay* its *change* permission, *discard* and *cancel* its *delete* permission; there is no form
for adding, changing or deleting a row. Every page costs the same on an empty table and on one of a
million rows.
`outbox.py`, `deliveries.py`, `dead_letters.py` and `relays.py` are the pages, `actions.py` and
`operations.py` hold the actions. Each page shows one database, which `databases.py` chooses.
"""

from __future__ import annotations

from django_integration.admin.dead_letters import DeadLetterAdmin
from django_integration.admin.deliveries import DeliveryAdmin
from django_integration.admin.outbox import OutboxAdmin
from django_integration.admin.relays import RelayAdmin

__all__ = ["DeadLetterAdmin", "DeliveryAdmin", "OutboxAdmin", "RelayAdmin"]
