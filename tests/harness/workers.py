"""One real `celery worker` behind pytest-celery's class, without Docker.

Every wait has a condition and a timeout, and its failure shows the worker's log. The process itself
is in `processes.py`.
"""

from __future__ import annotations

import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import psutil
from pytest_celery import CeleryTestWorker
from pytest_celery import CeleryWorkerContainer as WorkerContainer

from tests import helpers

if TYPE_CHECKING:
    from tests.harness.processes import LocalProcess

START_TIMEOUT = 60.0


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
        """The node name, as for `inspect -d`."""
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
        """Wait until the log contains this text `times` times."""
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
