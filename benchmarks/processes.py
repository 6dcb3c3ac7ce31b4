"""Contenders as processes: real workers, the peer's relay, and our small agents.

Each has a process group of its own and a log file. CPU seconds are those of the process and its
children, memory is that of the process; both are read from the operating system.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

ROOT = Path(__file__).resolve().parents[1]
PEER_PYTHON = ROOT / ".venvs" / "bench-peer" / "bin" / "python"
START_TIMEOUT = 60.0
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=INFO")


class ContenderError(Exception):
    """A contender did not do what it was asked to; the text ends with its log."""


class Process:
    """One process; a context manager that starts it and kills it at the end of the block."""

    def __init__(self, argv: Sequence[str], env: dict[str, str], ready: str) -> None:
        self._argv, self._ready = list(argv), ready
        self._env = {**os.environ, **env, "PYTHONUNBUFFERED": "1", "C_FORCE_ROOT": "1"}
        self._log = Path(tempfile.mkstemp(prefix="outbox-bench-", suffix=".log")[1])
        self.popen: subprocess.Popen[str]

    def __enter__(self) -> Process:  # noqa: PYI034  Self is Python 3.11's
        with self._log.open("w") as log:
            self.popen = subprocess.Popen(
                self._argv,
                cwd=ROOT,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self._ready == "stdout" else log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        if error is None:
            self._log.unlink()

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while self._ready not in self._log.read_text(errors="replace"):
            if not self.alive or time.monotonic() > deadline:
                raise self.failure("did not get ready")
            time.sleep(0.05)

    def failure(self, text: str) -> ContenderError:
        log = self._log.read_text(errors="replace")[-3000:]
        return ContenderError(f"{' '.join(self._argv)} {text}:\n{log}")

    def cpu(self) -> float:
        """CPU seconds so far."""
        times = [each.cpu_times() for each in self._with_children()]
        return sum(each.user + each.system for each in times)

    def memory(self) -> float:
        """Resident megabytes of the process itself."""
        return psutil.Process(self.popen.pid).memory_info().rss / 1e6

    def kill(self) -> None:
        """Not a warm stop: the measurement is over, and that would take a worker six seconds."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def _with_children(self) -> list[psutil.Process]:
        parent = psutil.Process(self.popen.pid)
        return [parent, *parent.children(recursive=True)]


class Agent(Process):
    """A process that answers each line with a line. Its module is in `benchmarks.agents`."""

    def __init__(
        self, name: str, side: str, where: str, *arguments: str, broker: str = "rabbitmq"
    ) -> None:
        argv = [_python(side), "-m", f"benchmarks.agents.{name}", *arguments]
        super().__init__(argv, environment(side, where, broker), "stdout")

    def wait_until_ready(self) -> None:
        self.answer()

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.answer()

    def tell(self, line: str) -> None:
        print(line, file=_pipe(self.popen.stdin), flush=True)

    def answer(self) -> str:
        line = _pipe(self.popen.stdout).readline()
        if not line:
            raise self.failure("gave no answer")
        return line.strip()


def run_agent(name: str, side: str, where: str, *arguments: str) -> str:
    """Run an agent that does one thing and prints one answer."""
    with Agent(name, side, where, *arguments) as agent:
        return agent.answer()


def worker(
    where: str,
    broker: str,
    number: int = 1,
    *,
    queue: str,
    relay: bool = True,
    environ: Mapping[str, str] | None = None,
) -> Process:
    """A real `celery worker` of our project."""
    argv = [
        *(_python("ours"), "-m", "celery", "-A", "benchmarks.project.ours", "worker"),
        *("-Q", queue, "-c", "1", "-n", f"bench{number}@localhost", *QUIET),
        *(("--outbox-relay",) if relay else ()),
    ]
    return Process(argv, {**environment("ours", where, broker), **(environ or {})}, " ready.")


def peer_relay(where: str, broker: str) -> Process:
    """The peer's relay, as its documentation starts it."""
    argv = [_python("peer"), "-m", "django", "celery_outbox_relay"]
    return Process(argv, environment("peer", where, broker), "celery_outbox_relay_started")


def environment(side: str, where: str, broker: str = "rabbitmq") -> dict[str, str]:
    return {
        "DJANGO_SETTINGS_MODULE": "benchmarks.project.settings",
        "PYTHONPATH": str(ROOT),
        "OUTBOX_BENCH_SIDE": side,
        "OUTBOX_BENCH_DB": where,
        "OUTBOX_BENCH_BROKER": broker,
    }


def _python(side: str) -> str:
    return str(PEER_PYTHON) if side == "peer" else sys.executable


def _pipe(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise TypeError("this process has no pipes")
    return stream
