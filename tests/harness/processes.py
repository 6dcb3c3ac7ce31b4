"""Local processes: each with a log file, a process group, real signals and an exit code.

Every suite starts its workers as a `LocalProcess`, which pytest-celery uses in place of a Docker
container. Nothing here waits for a fixed time. Next: `workers.py`, `servers.py`.
"""

from __future__ import annotations

import os
import shlex
import signal as signals
import socket
import subprocess
import sys
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.services import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def clean_environment(**extra: str) -> dict[str, str]:
    """No variables of the caller's project, and this checkout on Python's path."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "C_FORCE_ROOT": "1", **extra}


class LocalProcess:
    """The part of docker-py's Container that pytest-celery uses, for a local process."""

    def __init__(
        self,
        argv: str | Sequence[str],
        *,
        name: str,
        cwd: Path,
        env: Mapping[str, str],
        **identity: Any,
    ) -> None:
        """`argv` as one string is run by the shell."""
        self.argv, self.name, self.cwd = argv, name, cwd
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
                shell=isinstance(self.argv, str),
                cwd=self.cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal reaches pytest only
                **self.identity,
            )

    def kill(self, signal: str | int = "SIGKILL") -> None:
        number = getattr(signals, signal) if isinstance(signal, str) else signal
        os.kill(self.pid, number)
        if number == signals.SIGKILL:
            self.wait(10)

    def wait(self, timeout: float) -> int:
        """The exit code; TimeoutExpired if it does not end in time."""
        assert self.process is not None
        return self.process.wait(timeout)

    def ask_to_stop(self, number: int = signals.SIGTERM) -> None:
        if self.status == "running":
            os.kill(self.pid, number)

    def stop(self, timeout: float = 10, first: int = signals.SIGTERM) -> None:
        if self.status == "running":
            self.ask_to_stop(first)
            with suppress(subprocess.TimeoutExpired):
                self.wait(timeout)
        self.end()

    def end(self) -> None:
        """Kill it at once, with all its child processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signals.SIGKILL)
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
