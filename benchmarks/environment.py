"""The environment of a run: services found or started, databases of our own, the peer installed.

Other data on the servers is not touched: databases are named `outbox_bench…`, queues
`outbox-bench.…`, and Redis has a database number of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from benchmarks.processes import PEER_PYTHON, ROOT, environment
from benchmarks.project.settings import database
from tests.services import NAMES, TITLES, Service, docker, finder, private

PEER = ("django-celery-outbox", "celery[redis]", "psycopg[binary]")
"""Installed by name, with the newest versions that go together."""


class Environment:
    """A context manager that drops the databases it created and stops the servers it started."""

    def __init__(self) -> None:
        self.services: dict[str, Service] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="outbox-bench-")
        self._databases: list[str] = []

    def __enter__(self) -> Environment:  # noqa: PYI034  Self is Python 3.11's
        for name in NAMES:
            service = finder.provide(name, say)
            os.environ.update(service.environment())
            say(f"{TITLES[name]} {service.version}, {service.found}")
            self.services[name] = service
        install_peer()
        return self

    def __exit__(self, *_: object) -> None:
        from django.db import connections

        connections.close_all()
        for where in self._databases:
            _drop(where)
        self._folder.cleanup()
        for service in self.services.values():
            if service.pids:
                private.stop(service)
        if any(service.found == docker.FOUND for service in self.services.values()):
            docker.stop()

    def database(self, vendor: str, name: str = "outbox_bench", side: str = "ours") -> str:
        """A fresh, migrated database, as `vendor:name`."""
        if vendor == "sqlite":
            name = str(Path(self._folder.name, f"{name}.sqlite3"))
        where = f"{vendor}:{name}"
        if where not in self._databases:
            say(f"creating {vendor} database for {side}")
            _drop(where)
            _create(where)
            self._databases.append(where)
            python = str(PEER_PYTHON) if side == "peer" else sys.executable
            subprocess.run(
                [python, "-m", "django", "migrate", "--verbosity", "0", "--skip-checks"],
                cwd=ROOT,
                env={**os.environ, **environment(side, where)},
                check=True,
            )
        return where


def install_peer() -> None:
    """Install django-celery-outbox into a virtual environment of its own, once."""
    stamp = PEER_PYTHON.parents[1] / ".installed"
    if stamp.exists():
        return
    say("installing django-celery-outbox into an environment of its own")
    venv.create(PEER_PYTHON.parents[1], with_pip=True, clear=True)
    subprocess.run([PEER_PYTHON, "-m", "pip", "install", "--quiet", *PEER], check=True)
    stamp.touch()


def say(text: str) -> None:
    print(f"bench: {text}", flush=True)


def _create(where: str) -> None:
    name = database(where)["NAME"]
    if not where.startswith("sqlite"):
        _run_outside(where, f"CREATE DATABASE {name}")


def _drop(where: str) -> None:
    name = database(where)["NAME"]
    if where.startswith("sqlite"):
        Path(name).unlink(missing_ok=True)
    else:
        force = " WITH (FORCE)" if where.startswith("postgresql") else ""
        _run_outside(where, f"DROP DATABASE IF EXISTS {name}{force}")


def _run_outside(where: str, sql: str) -> None:
    """Execute a statement about a database, connected to the server's own database."""
    from django.db.utils import ConnectionHandler

    settings: dict[str, Any] = database(where)
    settings["NAME"] = "postgres" if where.startswith("postgresql") else "mysql"
    connection = ConnectionHandler({"default": settings})["default"]
    with connection.cursor() as cursor:
        cursor.execute(sql)
    connection.close()
