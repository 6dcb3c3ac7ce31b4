"""MySQL 8 and MariaDB: a claim selects due rows that are not locked, and updates them.

The statements name the index to use: a queue table's statistics are always out of date, and what
the optimiser chooses by them is a full scan or a deadlock. The claim itself is in
`select_then_update.py`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from django_integration.schema import DELIVERIES, INBOX, ORDER_INDEX
from django_integration.store.dialect import LOCK_TIMEOUT
from django_integration.store.select_then_update import SelectThenUpdate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_integration.store.session import Session


LOCK_CONFLICT = (1205, 1213, 1969)
"""The numbers of a lock wait timeout, a deadlock, and MariaDB's `max_statement_time`."""
BEYOND_BMP = re.compile("[^\x00-\uffff]")


class MySQL(SelectThenUpdate):
    vendor = "mysql"
    from_now = "UTC_TIMESTAMP(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND"
    after = "{} + INTERVAL ROUND(%s * 1000000) MICROSECOND"
    seconds_waited = "TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6)) / 1000000e0"
    seconds_held = (
        "COALESCE(TIMESTAMPDIFF(MICROSECOND, created_at, GREATEST(eta, created_at)) / 1000000e0, 0)"
    )
    iso_text = "DATE_FORMAT({}, '%%Y-%%m-%%dT%%H:%%i:%%s.%%f+00:00')"
    seconds_until = "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), {}) / 1000000e0"
    content_size = "LENGTH(args) + LENGTH(kwargs) + LENGTH(options) + COALESCE(LENGTH(payload), 0)"
    from_watermark = "due_at >= %s - INTERVAL 1 SECOND AND due_at >= %s"
    index_hint = lookup_hint = " FORCE INDEX ({})"
    # A scan of a small table would wait for the rows that other relays hold: a deadlock.
    primary_key_hint = " FORCE INDEX (PRIMARY)"
    task_name_matches = "CAST(task_name AS BINARY) LIKE CAST(%s AS BINARY) ESCAPE '!'"
    estimate_rows = (
        "SELECT table_rows FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_name = %s"
    )
    wait_briefly = "SET SESSION innodb_lock_wait_timeout = 1"
    returns_inserted = False
    stray_lock = " FOR UPDATE"
    on_inbox_conflict = "ON DUPLICATE KEY UPDATE"
    loses_transactions = True
    # A scan would wait for the entries of tasks that are running.
    delete_entries = f"DELETE entry FROM {INBOX} AS entry FORCE INDEX (PRIMARY)"
    options = {"connect_timeout": 10}

    @staticmethod
    def is_lock_conflict(error: Exception) -> bool:
        return error.args[:1] in [(number,) for number in LOCK_CONFLICT]

    def configure_session(self, session: Session) -> None:
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

    def delete_by_id(self, table: str, ids: Sequence[int]) -> tuple[str, list[Any]]:
        # DELETE takes no index hint; driven by a join, it has to look its rows up by id.
        sql = (
            "DELETE target FROM JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$')) AS chosen"
            f" STRAIGHT_JOIN {table} AS target FORCE INDEX (PRIMARY) WHERE target.id = chosen.id"
        )
        return sql, [json.dumps(list(ids))]

    def first_by_key(self, keys: Sequence[str], destination: str) -> tuple[str, list[Any]]:
        # A list of texts would have another collation than the column. MariaDB does not jump from
        # group to group of a GROUP BY, but looks a single minimum up in the index.
        table = self.along(ORDER_INDEX, DELIVERIES.name)
        first = (
            f"SELECT %s, MIN(id) FROM {table}"  # noqa: S608  our own names
            " WHERE destination = %s AND order_key = %s"
        )
        sql = " UNION ALL ".join([first] * len(keys))
        return sql, [value for key in keys for value in (key, destination, key)]

    def storable_text(self, text: str) -> str:
        # A table in the old three-byte character set would refuse the whole statement.
        return BEYOND_BMP.sub(lambda found: f"\\U{ord(found[0]):08x}", super().storable_text(text))
