"""A private RabbitMQ, Redis, PostgreSQL or MariaDB that a test may stop and start again.

After a restart it has the same port and the same data. Servers that other tests share are never
stopped. `tests/services/private.py` starts the first process.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from pytest_celery import CeleryTestContainer, CeleryTestNode

from tests import helpers
from tests.harness.processes import LocalProcess
from tests.services import address, private
from tests.services.handshake import HandshakeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.services import Service

START_TIMEOUT = 60.0


class ServerContainer(CeleryTestContainer):  # type: ignore[misc]
    """pytest-celery's container around a private server."""


class PrivateServer(CeleryTestNode):  # type: ignore[misc]
    """A private server that may be stopped and started again on the same port."""

    def __init__(self, name: str, home: Path) -> None:
        if not private.possible(name):
            helpers.require_program(private.recipes.PROGRAMS[name][0][0])
        self.service: Service = private.start(name, home=home)
        running = psutil.Process(self.service.pids[-1])
        owner = running.uids().effective
        identity = {} if owner == os.geteuid() else {"user": owner, "group": running.gids().real}
        if identity:
            identity["extra_groups"] = []
        cwd = Path(running.cwd())
        restarted = LocalProcess(
            running.cmdline(), name=name, cwd=cwd, env=_clean(running.environ()), **identity
        )
        restarted.log = home / f"{name}-restarted.log"
        self._signal = private.recipes.STOP_SIGNALS.get(name, signal.SIGTERM)
        super().__init__(ServerContainer(restarted))

    @property
    def port(self) -> int:
        return self.service.port

    def stop(self) -> None:
        """Stop it, and keep its data."""
        restarted: LocalProcess = self.container._container
        if restarted.process is not None:
            restarted.stop(30, self._signal)
        else:
            _end(self.service.pids[-1], self._signal)

    def start(self) -> None:
        """Start it again, on the same port with the same data, and wait until it answers."""
        self.container._container.start()
        helpers.wait_for(self.answers, START_TIMEOUT, f"{self.service.name} does not come back")

    def answers(self) -> bool:
        try:
            return bool(address.ask(self.service, timeout=2.0))
        except HandshakeError:
            return False

    def teardown(self) -> None:
        self.stop()
        private.stop(self.service)


def _clean(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if not key.startswith("_")}


def _end(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    helpers.wait_for(lambda: _reaped(pid), 30, f"process {pid} does not end")


def _reaped(pid: int) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return not private.alive(pid)
