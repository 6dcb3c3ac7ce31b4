"""Debian's and Ubuntu's packages: installed without questions and without starting daemons.

Only where that is possible (root, or sudo that asks for no password) and only what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SERVERS = {
    "postgres": ("postgresql",),
    "mysql": ("mariadb-server",),
    "rabbitmq": ("rabbitmq-server",),
    "redis": ("redis-server",),
    "pgbouncer": ("pgbouncer",),
    "chromium": ("chromium",),
    "chromedriver": ("chromium-driver",),
    "faketime": ("faketime",),
    "promtool": ("prometheus",),
}
_POLICY = Path("/usr/sbin/policy-rc.d")
_state = {"updated": False}


def possible() -> bool:
    """Whether packages can be installed here without a question or a password."""
    return shutil.which("apt-get") is not None and _as_root() is not None


def missing_build_packages() -> tuple[str, ...]:
    """What mysqlclient and a virtual environment need and this machine does not have."""
    wanted = []
    if not _have_client_library():
        wanted.append("libmariadb-dev")
    if not shutil.which("pkg-config"):
        wanted.append("pkg-config")
    if not (shutil.which("gcc") or shutil.which("cc")):
        wanted += ["gcc", "libc6-dev"]
    return tuple(wanted)


def install(packages: Iterable[str], say: Callable[[str], None]) -> None:
    """apt-get install, or `RuntimeError` with the end of what apt said."""
    names = list(packages)
    say(f"installing Debian packages: {' '.join(names)}")
    with _daemons_stay_down():
        if not _state["updated"]:
            _apt("update")
            _state["updated"] = True
        _apt("install", "--yes", "--no-install-recommends", *names)


def _apt(*arguments: str) -> None:
    prefix = _as_root()
    if prefix is None:
        raise RuntimeError("apt-get needs root")
    settings = ["DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_MODE=l"]
    command = [*prefix, "env", *settings, "apt-get", "-q", "-o", "DPkg::Lock::Timeout=120"]
    result = subprocess.run(
        [*command, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"apt-get {arguments[0]} failed:\n{result.stdout[-2000:]}")


def _as_root() -> list[str] | None:
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if (
        sudo
        and not subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode
    ):
        return [sudo, "-n"]
    return None


def _have_client_library() -> bool:
    if shutil.which("mariadb_config") or shutil.which("mysql_config"):
        return True
    pkg_config = shutil.which("pkg-config")
    names = ("libmariadb", "mysqlclient", "mariadb")
    return pkg_config is not None and any(
        _succeeds([pkg_config, "--exists", name]) for name in names
    )


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextmanager
def _daemons_stay_down() -> Iterator[None]:
    """Debian asks this script before it starts a daemon; ours says no (status 101)."""
    ours = os.geteuid() == 0 and not _POLICY.exists()
    if ours:
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            _POLICY.unlink(missing_ok=True)
