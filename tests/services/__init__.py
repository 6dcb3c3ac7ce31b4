"""Find or start the services that the tests talk to, with nothing but the standard library.

`python3 -m tests.services up` prints the environment for pytest, `status` says what answers,
`down` stops what `up` started. Read next: `finder.py` (the order in which we look),
`private.py` (servers of our own), `handshake.py` (what "it answers" means).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

NAMES = ("postgres", "mysql", "rabbitmq", "redis")
TITLES = {
    "postgres": "PostgreSQL",
    "mysql": "MariaDB/MySQL",
    "rabbitmq": "RabbitMQ",
    "redis": "Redis",
}
PROGRAMS = ("pgbouncer", "chromium", "chromedriver", "faketime", "promtool")
ROOT = Path(__file__).resolve().parents[2]
HOME = Path(os.environ.get("OUTBOX_SERVICES_HOME") or ROOT / ".services")


@dataclass(frozen=True)
class Service:
    """A server that answered a handshake: where it is, and how we came by it."""

    name: str
    host: str
    port: int
    version: str = ""
    url: str = ""
    found: str = "already running"
    pids: tuple[int, ...] = field(default=())
    directory: str = ""

    @property
    def address(self) -> str:
        separator = "/.s.PGSQL." if self.host.startswith("/") else ":"
        return f"{self.host}{separator}{self.port}"

    def environment(self) -> dict[str, str]:
        """The variables that tell the tests, psql and friends about this server."""
        if self.name == "postgres":
            return {"PGHOST": self.host, "PGPORT": str(self.port)}
        if self.name == "mysql":
            return {"MYSQL_HOST": self.host, "MYSQL_PORT": str(self.port)}
        return {f"{self.name.upper()}_URL": self.url}
