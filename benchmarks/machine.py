"""The machine and the exact versions, without which the numbers can't be judged.

Reads only: nothing here changes a setting of the machine or of a server. `report.py` prints it
below the tables.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.processes import PEER_PYTHON, ROOT

if TYPE_CHECKING:
    from benchmarks.table import Table
    from tests.services import Service

OURS = ("celery", "kombu", "amqp", "redis", "Django", "psycopg", "mysqlclient")
PEERS = ("django-celery-outbox", "celery", "kombu", "amqp", "redis", "Django", "psycopg")
POSTGRESQL = ("fsync", "synchronous_commit", "shared_buffers", "max_wal_size", "autovacuum")


def facts(services: dict[str, Service], table: Table) -> dict[str, Any]:
    """Everything that a reader needs to judge or to repeat a run."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "cores": os.cpu_count(),
        "cpu": _cpu(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "services": {name: service.version for name, service in services.items()},
        "packages": {name: version(name) for name in OURS},
        "peer_packages": _peer_versions(),
        "postgresql_settings": {name: table.execute(f"SHOW {name}")[0][0] for name in POSTGRESQL},
    }


def load() -> float:
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _peer_versions() -> dict[str, str]:
    code = (
        "import json; from importlib.metadata import version;"
        f"print(json.dumps({{name: version(name) for name in {PEERS}}}))"
    )
    done = subprocess.run([PEER_PYTHON, "-c", code], capture_output=True, text=True, check=True)
    answer: dict[str, str] = json.loads(done.stdout)
    return answer
