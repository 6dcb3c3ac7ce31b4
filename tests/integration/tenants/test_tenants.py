"""django-tenants and tenant-schemas-celery, in a pytest process with a project of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "cases" / "tenants.py"
ROOT = Path(__file__).parents[3]


@pytest.mark.postgresql
def test_tenants() -> None:
    environment = {**os.environ}
    environment.pop("OUTBOX_TEST_REPORT", None)  # the report is this process's own
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
        "--ds=tests.integration.tenants.settings", str(CASES),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.fail(f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}", False)
