"""Servers of our own: free ports, data under `.services/`, stopped by process id.

They never touch the servers that the machine runs: other ports, other directories, another
Erlang node with an epmd of its own. Each lives in a directory with a `service.json` that says
what to stop. `recipes.py` knows how each server is set up and started.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import HOME, Service, address, programs, recipes
from .handshake import HandshakeError

if TYPE_CHECKING:
    from collections.abc import Callable

FOUND = "started privately"
START_TIMEOUT = 90.0
STOP_TIMEOUT = 20.0


def possible(name: str) -> bool:
    """Are the programs of this server installed?"""
    return all(programs.which(*names) for names in recipes.PROGRAMS[name])


def start(
    name: str,
    *,
    say: Callable[[str], None] = lambda text: None,
    found: str = FOUND,
    home: Path | None = None,
) -> Service:
    """Start a server and wait until it answers a handshake, or `RuntimeError`."""
    port = free_port()
    note = (home or HOME) / f"{name}-{port}"
    note.mkdir(parents=True)
    owner = programs.unprivileged_user(*recipes.USERS[name])
    data = _data_directory(note, owner)
    service = replace(address.at_port(name, port), found=found, directory=str(note))
    say(f"starting a private {name} on port {port}" + (f" as user {owner}" if owner else ""))
    try:
        for process in recipes.start(name, port, data, owner):
            service = replace(service, pids=(*service.pids, process.pid))
            _write(note, service, data)
        return _when_it_answers(service, process, data)
    except BaseException:
        _write(note, service, data)
        stop(service)
        raise


def started(name: str | None = None, home: Path | None = None) -> list[Service]:
    """Private servers that still respond. Without process ids: their starter stops them."""
    found = []
    for service in _notes(home or HOME, name or "*"):
        try:
            version = address.ask(service)
        except HandshakeError:
            continue
        found.append(replace(service, version=version, pids=(), found="private, already running"))
    return found


def stop(service: Service) -> None:
    """Stop exactly the processes we started, the last one first, and remove their data."""
    note = Path(service.directory)
    content = json.loads((note / "service.json").read_text())
    for pid in reversed(service.pids):
        if _birth(pid) == content["births"].get(str(pid)):
            _stop_process(pid, recipes.STOP_SIGNALS.get(service.name, signal.SIGTERM))
    shutil.rmtree(content["data"], ignore_errors=True)
    shutil.rmtree(note, ignore_errors=True)


def stop_all(home: Path | None = None) -> list[Service]:
    """Stop every private server that has a note, also one that no longer answers."""
    services = _notes(home or HOME)
    for service in services:
        stop(service)
    return services


def alive(pid: int) -> bool:
    """Is this process there and not a zombie?"""
    return _birth(pid) is not None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _data_directory(note: Path, owner: str | None) -> Path:
    """Beside the note, or in the temporary directory where another user could not get there."""
    reachable = all(parent.stat().st_mode & 0o001 for parent in note.resolve().parents)
    if owner is None or reachable:
        data = note / "data"
        data.mkdir()
    else:
        data = Path(tempfile.mkdtemp(prefix="outbox-service-"))
    if owner is not None:
        shutil.chown(data, owner)
    data.chmod(0o700)
    return data


def _notes(home: Path, name: str = "*") -> list[Service]:
    files = sorted(home.glob(f"{name}-*/service.json"))
    contents = [json.loads(file.read_text())["service"] for file in files]
    return [Service(**{**content, "pids": tuple(content["pids"])}) for content in contents]


def _write(note: Path, service: Service, data: Path) -> None:
    births = {str(pid): _birth(pid) for pid in service.pids}
    content = {"service": asdict(service), "data": str(data), "births": births}
    (note / "service.json").write_text(json.dumps(content, indent=2))


def _when_it_answers(service: Service, process: subprocess.Popen[bytes], data: Path) -> Service:
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        try:
            return replace(service, version=address.ask(service, timeout=2.0))
        except HandshakeError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(_failure(service, process, error, data)) from error
        time.sleep(0.1)


def _failure(
    service: Service, process: subprocess.Popen[bytes], error: Exception, data: Path
) -> str:
    state = "is still running" if process.poll() is None else f"exited with {process.returncode}"
    log = data / "output.log"
    tail = log.read_text(errors="replace")[-1500:] if log.exists() else ""
    return f"the private {service.name} does not answer ({error}) and {state}:\n{tail}"


def _stop_process(pid: int, first_signal: int) -> None:
    for kill, number in ((os.kill, first_signal), (os.killpg, signal.SIGKILL)):
        try:
            kill(pid, number)  # each leads a session, so that its id is its group's id too
        except ProcessLookupError:
            return
        deadline = time.monotonic() + STOP_TIMEOUT
        while time.monotonic() < deadline:
            _reap(pid)
            if not alive(pid):
                return
            time.sleep(0.05)


def _reap(pid: int) -> None:
    """Collect a child that has ended; not ours to wait for if another process started it."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _birth(pid: int) -> str | None:
    """When this process started, so that a recycled id is never signalled; None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return _birth_from_ps(pid)
    return None if fields[0] == "Z" else fields[19]


def _birth_from_ps(pid: int) -> str | None:
    if Path("/proc/self/stat").exists() or shutil.which("ps") is None:
        return None
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    line = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return None if not line or line.startswith("Z") else line.partition(" ")[2].strip()
