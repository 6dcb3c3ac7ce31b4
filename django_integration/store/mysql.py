"""MySQL 8 and MariaDB: the claim is a SELECT that skips locked rows and an UPDATE, then COMMIT."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from django_integration.store.dialect import LOCK_TIMEOUT
from django_integration.store.select_then_update import SelectThenUpdate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_integration.store.session import Session


BEYOND_BMP = re.compile("[^\x00-\uffff]")


class MySQL(SelectThenUpdate):
    now = "UTC_TIMESTAMP(6)"
    later = "UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND"
    waited = "TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0"
    left = "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), claimed_until) / 1000000e0"
    size = "LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)"
    above = "due_at >= %s - INTERVAL 1 SECOND AND due_at >= %s"
    hint = " FORCE INDEX (celery_outbox_due)"
    # A scan of a small table would wait for the rows that other relays hold: a deadlock.
    by_id = " FORCE INDEX (PRIMARY)"
    named = "CAST(task_name AS BINARY) LIKE CAST(%s AS BINARY) ESCAPE '!'"
    options = {"connect_timeout": 10}

    def opened(self, session: Session) -> None:
        session.run(f"SET SESSION lock_wait_timeout = LEAST(@@lock_wait_timeout, {LOCK_TIMEOUT})")

    def check(self, wrapper: Any) -> str:
        maria = wrapper.mysql_is_mariadb
        name, oldest = ("MariaDB", (10, 6)) if maria else ("MySQL", (8, 0, 4))  # JSON_TABLE
        if wrapper.mysql_version >= oldest:
            return ""
        found, needed = (".".join(map(str, version)) for version in (wrapper.mysql_version, oldest))
        return f"{name} {found} is too old for the relay; upgrade the server to {needed} or newer"

    def blocks_event_loop(self, wrapper: Any) -> bool:
        return bool(wrapper.Database.__name__ != "pymysql")

    def delete(self, table: str, ids: Sequence[int]) -> tuple[str, list[Any]]:
        # DELETE takes no index hint for itself; driven by a join it can only look up its rows.
        sql = (
            "DELETE o FROM JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS k"
            f" STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) WHERE o.id = k.id"
        )
        return sql, [json.dumps(list(ids))]

    def text(self, text: str) -> str:
        # A table in the old three-byte character set would refuse the whole statement.
        return BEYOND_BMP.sub(lambda found: f"\\U{ord(found[0]):08x}", super().text(text))
