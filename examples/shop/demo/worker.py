"""A real `celery worker` process: started, asked to stop, or killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from demo.say import ClaimFailedError, eventually

LEASE = 4


def relay_flags() -> list[str]:
    """The flags, with times that suit a demo. DEMO_BREAK=relay leaves the relay out, on purpose."""
    if os.environ.get("DEMO_BREAK") == "relay":
        return []
    lease = 600 if os.environ.get("DEMO_BREAK") == "lease" else LEASE
    values = {
        "stale-timeout": lease,
        "send-timeout": 3,
        "broker-outage-cooldown": 1,
        "backoff-time": 10,
        "max-retries": 3,
    }
    return ["--outbox-relay", *(f"--outbox-{name}={value}" for name, value in values.items())]


class Worker:
    """One `celery worker`, with its log in a file."""

    def __init__(self, name: str, home: Path, queue: str) -> None:
        self.log = home / f"{name}.log"
        self.arguments = [
            *("celery", "-A", "shop", "worker", "-n", f"{name}@%h", "-Q", queue),
            *("--concurrency=2", "--loglevel=INFO", *relay_flags()),
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", *self.arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def command(self) -> str:
        return " ".join(self.arguments)

    def wait_until_ready(self) -> None:
        eventually(lambda: self.has_logged(" ready.") or self.process.poll() is not None)
        if not self.has_logged(" ready."):
            raise ClaimFailedError("the worker did not start")

    def has_logged(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    def last_lines(self, count: int = 25) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def kill(self) -> None:
        """kill -9, the process and its children at once."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self) -> None:
        """A warm shutdown, as a deploy does it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
