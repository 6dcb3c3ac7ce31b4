"""For tests without a database or a broker: a Store in memory and a publisher that records.

`MemoryStore` keeps the contract of `celery_outbox_steps.store`. The suite that checks it, for any
store, is `celery_outbox_steps.testing.contract`: not imported here, because it needs pytest.
"""

from __future__ import annotations

from celery_outbox_steps.testing.memory_rows import MemoryDeadLetter, MemoryRow
from celery_outbox_steps.testing.memory_store import MemoryStore
from celery_outbox_steps.testing.publisher import RecordingPublisher

__all__ = ["MemoryDeadLetter", "MemoryRow", "MemoryStore", "RecordingPublisher"]
