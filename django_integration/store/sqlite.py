"""SQLite: a claim takes the write lock first, then selects and updates. For development and tests.

Times are texts in Django's format, which sort as times do. The claim itself is in
`select_then_update.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django_integration.schema import OUTBOX
from django_integration.store.select_then_update import SelectThenUpdate

if TYPE_CHECKING:
    from collections.abc import Sequence


class SQLite(SelectThenUpdate):
    vendor = "sqlite"
    from_now = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', printf('%%.3f seconds', %s))"
    after = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', {}, printf('%%.3f seconds', %s))"
    seconds_waited = "(julianday('now') - julianday(created_at)) * 86400.0"
    seconds_held = (
        "coalesce((julianday(max(eta, created_at)) - julianday(created_at)) * 86400.0, 0.0)"
    )
    iso_text = "replace({}, ' ', 'T') || '+00:00'"
    seconds_until = "(julianday({}) - julianday('now')) * 86400.0"
    content_size = "length(args) + length(kwargs) + length(options) + coalesce(length(payload), 0)"
    index_hint = " INDEXED BY {}"
    list_of_k = "(SELECT value AS k FROM json_each(%s)) AS wanted"
    task_name_matches = "task_name GLOB %s"  # its LIKE ignores case
    for_update = skip_locked = keep_lock = replace_lock = ""
    # The write lock at once: a transaction that reads first could not get it later.
    begin_transaction = "BEGIN IMMEDIATE"
    take_write_lock = f"DELETE FROM {OUTBOX} WHERE id IS NULL"  # noqa: S608  our own name
    watermark = False

    @staticmethod
    def is_aborted(connection: Any) -> bool:
        return not connection.connection.in_transaction

    @staticmethod
    def is_lock_conflict(error: Exception) -> bool:
        return "locked" in str(error)

    def id_in(self, ids: Sequence[Any], column: str = "id") -> tuple[str, list[Any]]:
        # One parameter, whatever the batch size: SQLite limits how many a statement may have.
        values = "(SELECT value FROM json_each(%s))"
        return f"{column} IN {values}", [json.dumps(list(ids))]

    def list_param(self, values: Sequence[str]) -> Any:
        return json.dumps(list(values))

    def like_pattern(self, text: str) -> str:
        return text.replace("[", "[[]")
