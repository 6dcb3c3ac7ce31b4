"""The same four servers from `compose.yaml`, where a Docker engine runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from . import Service, address

if TYPE_CHECKING:
    from collections.abc import Callable

FOUND = "docker compose"
_COMPOSE = Path(__file__).with_name("compose.yaml")
_PORTS = address.STANDARD_PORTS


def possible() -> bool:
    """Is there an engine, not only a client?"""
    if shutil.which("docker") is None:
        return False
    try:
        result = subprocess.run(["docker", "info"], capture_output=True, timeout=15, check=False)
    except subprocess.TimeoutExpired:
        return False
    return result.returncode == 0


def start(name: str, say: Callable[[str], None]) -> Service:
    """Start one server of the compose file and wait until its health check passes."""
    say(f"starting {name} with docker compose")
    _compose("up", "--detach", "--wait", name)
    port = int(_compose("port", name, str(_PORTS[name])).rsplit(":", 1)[1])
    service = address.at_port(name, port)
    version = address.ask(service)
    return Service(**{**vars(service), "version": version, "found": FOUND})


def stop() -> None:
    _compose("down", "--volumes")


def _compose(*arguments: str) -> str:
    command = ["docker", "compose", "--file", str(_COMPOSE), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"docker compose {arguments[0]} failed: {result.stderr[-1000:]}")
    return result.stdout.strip()
