"""The whole suite once more with the drivers that Django does not prefer.

psycopg2 is only used where psycopg is not installed, and PyMySQL only where it poses as MySQLdb:
each is tested in a process where that is so (`drivers.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import helpers

ROOT = Path(__file__).parents[2]
MODULES = ("test_store", "test_connections", "test_isolation", "test_listen", "test_processes")
SUITE = [f"tests/contract/{name}.py" for name in MODULES]
INSIDE = "OUTBOX_CONTRACT_DRIVER"
LONGEST = 400
"""Seconds; about 40 on an idle machine."""


@pytest.mark.timeout(LONGEST + 10)
@pytest.mark.skipif(INSIDE in os.environ, reason="runs inside such a process already")
@pytest.mark.parametrize(("driver", "service"), [("psycopg2", "postgresql"), ("pymysql", "mysql")])
def test_the_contract_holds_with(driver, service):
    helpers.require_service(service)
    pytest.importorskip(driver)
    environment = {**os.environ, INSIDE: driver, "OUTBOX_CONTRACT_BACKENDS": driver}
    environment.pop("OUTBOX_TEST_REPORT", None)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.contract.drivers",
        "-p",
        "no:cacheprovider",
        *SUITE,
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
    )
    print(done.stdout[-6000:], done.stderr[-2000:])
    assert done.returncode == 0, done.stdout[-6000:]
