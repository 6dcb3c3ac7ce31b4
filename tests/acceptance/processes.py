"""Local processes behind pytest-celery's classes: no Docker, real signals, real exit codes.

`LocalProcess` is what pytest-celery takes for a docker container. `Worker` is its CeleryTestWorker
around one `celery worker`. `PrivateServer` is a RabbitMQ, Redis, PostgreSQL or MariaDB of our own
that a test may stop and start again on the same port with the same data.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from pytest_celery import CeleryTestContainer, CeleryTestNode, CeleryTestWorker
from pytest_celery import CeleryWorkerContainer as WorkerContainer

from tests import helpers
from tests.services import address, private
from tests.services.handshake import HandshakeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.services import Service

START_TIMEOUT = 60.0


class LocalProcess:
    """The part of docker-py's Container that pytest-celery uses, for a process of this machine."""

    def __init__(
        self, argv: Sequence[str], *, name: str, cwd: Path, env: Mapping[str, str], **identity: Any
    ) -> None:
        self.argv, self.name, self.cwd = list(argv), name, cwd
        self.env = dict(env)
        self.id = uuid.uuid4().hex
        self.identity = identity
        self.log = cwd / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def attrs(self) -> dict[str, Any]:
        environment = [f"{key}={value}" for key, value in self.env.items()]
        return {
            "Config": {"Hostname": socket.gethostname(), "Env": environment},
            "NetworkSettings": {"Networks": {}, "Ports": {}},
            "HostConfig": {"PortBindings": {}},
        }

    @property
    def status(self) -> str:
        return "running" if self.process and self.process.poll() is None else "exited"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def reload(self) -> None:
        """A local process is never out of date."""

    def logs(self) -> bytes:
        return self.log.read_bytes() if self.log.exists() else b""

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                cwd=self.cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal is for pytest, not for them
                **self.identity,
            )

    def kill(self, signal: str | int = "SIGKILL") -> None:
        number = getattr(_signals, signal) if isinstance(signal, str) else signal
        os.kill(self.pid, number)
        if number == _signals.SIGKILL:
            self.wait(10)

    def wait(self, timeout: float) -> int:
        """The exit code; TimeoutExpired if it does not end in time."""
        assert self.process is not None
        return self.process.wait(timeout)

    def ask_to_stop(self, number: int = signal.SIGTERM) -> None:
        if self.status == "running":
            os.kill(self.pid, number)

    def stop(self, timeout: float = 10, first: int = signal.SIGTERM) -> None:
        if self.status == "running":
            self.ask_to_stop(first)
            with suppress(subprocess.TimeoutExpired):
                self.wait(timeout)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(10)

    def restart(self, timeout: float = 10) -> None:
        self.stop(timeout)
        self.start()

    def exec_run(self, cmd: str | list[str], **_: Any) -> tuple[int, bytes]:
        argv = shlex.split(cmd) if isinstance(cmd, str) else list(cmd)
        if argv[0] == "python":
            argv[0] = sys.executable
        done = subprocess.run(
            argv, cwd=self.cwd, env=self.env, capture_output=True, check=False, timeout=60
        )
        return done.returncode, done.stdout + done.stderr


_signals = signal


class LocalWorkerContainer(WorkerContainer):  # type: ignore[misc]
    """pytest-celery's worker container around a LocalProcess."""

    def teardown(self) -> None:
        self._container.stop(5, signal.SIGQUIT)


class Worker(CeleryTestWorker):  # type: ignore[misc]
    """One real `celery worker`."""

    @property
    def process(self) -> LocalProcess:
        local: LocalProcess = self.container._container
        return local

    @property
    def node(self) -> str:
        """What `inspect -d` calls it."""
        return f"{self.name()}@{socket.gethostname()}"

    def start(self) -> Worker:
        self.process.start()
        helpers.wait_for(
            lambda: " ready." in self.logs() or self.process.status == "exited",
            START_TIMEOUT,
            lambda: f"the worker does not get ready:\n{self.logs()}",
        )
        assert self.process.status == "running", self.logs()
        return self

    def wait(self, timeout: float = 30) -> int:
        """The exit code, once it has ended."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s:\n{self.logs()}") from None

    def stop(self, signal: str = "SIGTERM", timeout: float = 30) -> int:
        self.kill(signal)
        return self.wait(timeout)

    def wait_for(self, text: str, timeout: float = 20, times: int = 1) -> None:
        """Wait until the log has this text so many times."""
        helpers.wait_for(
            lambda: self.logs().count(text) >= times,
            timeout,
            lambda: f"{text!r} is not in the log:\n{self.logs()}",
        )

    def lines(self, *texts: str) -> list[str]:
        """Log lines that contain one of the texts."""
        return [line for line in self.logs().splitlines() if any(text in line for text in texts)]

    def complaints(self) -> list[str]:
        """Log lines that a healthy relay never writes."""
        return self.lines(
            "ERROR", "CRITICAL", "Traceback", "celery_outbox_relay_error", "broker_unavailable",
            "celery_outbox_fenced", "celery_outbox_publish_failed",
        )  # fmt: skip

    def children(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.process.pid).children()]

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)


class ServerContainer(CeleryTestContainer):  # type: ignore[misc]
    """pytest-celery's container around a server of ours."""


class PrivateServer(CeleryTestNode):  # type: ignore[misc]
    """A server of our own that may be stopped and started again where it was."""

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
        again = LocalProcess(
            running.cmdline(), name=name, cwd=cwd, env=_clean(running.environ()), **identity
        )
        again.log = home / f"{name}-again.log"
        self._signal = private.recipes.STOP_SIGNALS.get(name, signal.SIGTERM)
        super().__init__(ServerContainer(again))

    @property
    def port(self) -> int:
        return self.service.port

    def stop(self) -> None:
        """Stop it, and keep its data."""
        again: LocalProcess = self.container._container
        if again.process is not None:
            again.stop(30, self._signal)
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
