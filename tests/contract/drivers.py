"""Makes Django use the driver that OUTBOX_CONTRACT_DRIVER names, before Django is loaded.

Django prefers psycopg 3 and mysqlclient. To test psycopg2 honestly, psycopg must not be importable
in the whole process; to test PyMySQL it must pose as MySQLdb. So those drivers get a process of
their own, which loads this module first (`pytest -p tests.contract.drivers`).
"""

from __future__ import annotations

import os
import sys


def choose(driver: str) -> None:
    if driver == "psycopg2":
        sys.modules["psycopg"] = None  # type: ignore[assignment]
    elif driver == "pymysql":
        import pymysql

        pymysql.install_as_MySQLdb()


choose(os.environ.get("OUTBOX_CONTRACT_DRIVER", ""))
