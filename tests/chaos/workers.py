"""The workers of a chaos run: three that get killed and stopped, and a witness that must last.

A slot is a place where a worker runs, with its own TCP proxies to broker and database. A worker
that ends is replaced at once, as by a process manager, each time in another variant: pools, forks,
a wrong clock, a liveness file on a disk that refuses it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests import helpers
from tests.harness.processes import LocalProcess
from tests.services import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.harness.proxy import Proxy

WITNESS = "witness"
FLAVOURS: dict[str, list[str]] = {
    "prefork": ["-P", "prefork", "-c", "2"],
    "a child per task": ["-P", "prefork", "-c", "1", "--max-tasks-per-child=1"],
    "autoscale": ["-P", "prefork", "--autoscale=3,1"],
    "threads": ["-P", "threads", "-c", "2"],
    "clock an hour ahead": ["-P", "prefork", "-c", "1"],
    "clock an hour behind": ["-P", "prefork", "-c", "2"],
    "no liveness file": ["-P", "prefork", "-c", "1", "--outbox-liveness-file={path}/missing/alive"],
}
SKEW = {"clock an hour ahead": "+3600", "clock an hour behind": "-3600"}
# Not prefork: Celery's own pool can hang for good when its broker is restarted, also without us.
WITNESS_FLAGS = ["-P", "threads", "-c", "2", "--outbox-liveness-file={path}/witness.alive"]
LIBRARIES = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1")


def skewed(offset: str) -> dict[str, str]:
    """What to add to the environment of a process for another wall clock; nothing else shifts."""
    library = clock_shifter()
    if library is None:
        helpers.require_program("faketime")
    return {
        "LD_PRELOAD": library or "",
        "FAKETIME": offset,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": f"{Path(__file__).parent / 'skewed'}{os.pathsep}{ROOT}",
    }


def clock_shifter() -> str | None:
    """The library that gives a process another wall clock, where it is installed."""
    found = [str(path) for name in LIBRARIES for path in Path("/").glob(name.lstrip("/"))]
    return found[0] if found else None


@dataclass(frozen=True)
class Vitals:
    """What must not grow in a process that lasts."""

    rss_mb: float
    threads: int
    descriptors: int


@dataclass
class Slot:
    """Where one worker runs at a time."""

    name: str
    environment: Mapping[str, str]
    broker: Proxy
    database: Proxy
    path: Path
    flags: list[str]
    seed: str

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.flavour = WITNESS
        self.started = 0
        self.last_words: list[str] = []
        """Workers that ended by themselves after they had been ready."""
        self.refusals = 0
        """Workers that could not start: the database was away at that moment."""
        self.replaces = True
        self._random = random.Random(f"flavours {self.seed} {self.name}")
        self._process: LocalProcess | None = None
        self._dying: list[LocalProcess] = []

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the next worker of this slot; does not wait for it."""
        with self.lock:
            self.started += 1
            if self.name != WITNESS:
                self.flavour = self._next_flavour()
            self._process = LocalProcess(
                self._command(), name=self.log.stem, cwd=self.path, env=self._environment()
            )
            self._process.start()

    @property
    def log(self) -> Path:
        return self.path / f"{self.name}-{self.started:03}.log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.status == "running"

    @property
    def ready(self) -> bool:
        return self.running and b" ready." in self.log.read_bytes()

    def supervise(self) -> None:
        """Replace a worker that ended without being asked to."""
        with self.lock:
            if self.running or self._process is None or not self.replaces:
                return
            text = self.log.read_text(errors="replace")
            if " ready." in text:
                self.last_words.append(f"{self.log.name}: {self._process.wait(10)}")
            else:
                self.refusals += 1
            self.start()

    def kill(self) -> None:
        """Without a word, and a new one at once."""
        with self.lock:
            assert self._process is not None
            self._process.kill()
            # Its children die with it; until then they hold its sockets.
            gone = self.pid
            helpers.wait_for(lambda: not _group(gone), 10, "the children outlive their parent")
            self.start()

    def ask_to_stop(self, number: int) -> Callable[[float], float]:
        """Signal the worker and start the next one beside it, as a deploy does.

        Returns a function that waits for the end of the old one; it says how long that took.
        """
        with self.lock:
            old, began = self._process, time.monotonic()
            assert old is not None
            old.kill(number)
            self._dying.append(old)
            self.start()

        def wait(timeout: float) -> float:
            try:
                old.wait(timeout)
            except subprocess.TimeoutExpired:
                old.end()
                raise
            return time.monotonic() - began

        return wait

    def ask_to_end(self) -> Callable[[float], int]:
        """A warm stop without a replacement; the returned function waits for it."""
        self.replaces = False
        assert self._process is not None
        self._process.kill(signal.SIGTERM)
        return self._process.wait

    def end(self) -> None:
        """For good, however it takes."""
        self.replaces = False
        with self.lock:
            for process in (*self._dying, self._process):
                if process is not None:
                    process.end()

    # -- looks ------------------------------------------------------------------------------------

    def vitals(self) -> Vitals:
        process = psutil.Process(self.pid)
        rss = process.memory_info().rss / 2**20
        return Vitals(round(rss, 1), process.num_threads(), process.num_fds())

    def ask_what_it_does(self) -> None:
        """The stacks of its processes, into its log."""
        for pid in _group(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR2)

    def logs(self) -> list[Path]:
        return sorted(self.path.glob(f"{self.name}-*.log"))

    # -- details ----------------------------------------------------------------------------------

    def _next_flavour(self) -> str:
        names = list(FLAVOURS) if clock_shifter() else [n for n in FLAVOURS if n not in SKEW]
        return self._random.choice(names)

    def _command(self) -> list[str]:
        own = WITNESS_FLAGS if self.name == WITNESS else FLAVOURS[self.flavour]
        return [
            sys.executable, "-m", "celery", "-A", "tests.chaos.project", "worker", "-l", "INFO",
            "-n", f"{self.name}-{self.started}@%h", "--without-gossip", "--without-mingle",
            "--outbox-relay", *self.flags, *(flag.format(path=self.path) for flag in own),
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        skew = SKEW.get(self.flavour)
        if skew is None:
            return dict(self.environment)
        return {**self.environment, **skewed(skew)}


class Supervisor:
    """Looks after the slots, in a thread, until it is left."""

    def __init__(self, slots: list[Slot]) -> None:
        self._slots = slots
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._end.wait(0.2):
            for slot in self._slots:
                slot.supervise()


def _group(pid: int) -> list[int]:
    """Processes of the group that this one led, without zombies."""
    found = []
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError, psutil.Error):
            if os.getpgid(process.pid) == pid and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found
