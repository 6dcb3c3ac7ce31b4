"""SQLite: the claim holds the write lock, in the text format of Django's times."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django_integration.store.select_then_update import SelectThenUpdate

if TYPE_CHECKING:
    from collections.abc import Sequence


class SQLite(SelectThenUpdate):
    now = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')"
    later = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', printf('%%.3f seconds', %s))"
    waited = "(julianday('now') - julianday(created_at)) * 86400.0"
    left = "(julianday(claimed_until) - julianday('now')) * 86400.0"
    size = "length(args) + length(kwargs) + length(options) + coalesce(length(payload), 0)"
    hint = " INDEXED BY celery_outbox_due"
    named = "task_name GLOB %s"  # its LIKE does not tell upper and lower case apart
    for_update = ""
    skip_locked = ""
    # The write lock at once: a transaction that reads first could not get it later.
    begin_transaction = "BEGIN IMMEDIATE"
    watermark = False

    def ids(self, ids: Sequence[int]) -> tuple[str, list[Any]]:
        # One parameter, whatever the batch size: SQLite limits how many a statement may have.
        return "id IN (SELECT value FROM json_each(%s))", [json.dumps(list(ids))]

    def pattern(self, text: str) -> str:
        return text.replace("[", "[[]")
