"""Find server programs, also where servers hide them, and the user that may run them."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

_HIDDEN = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin")
_HIDDEN_GLOBS = (
    "usr/lib/rabbitmq/lib/*/sbin",  # Debian's wrapper in PATH insists on its own directories
    "usr/lib/postgresql/*/bin",
    "usr/lib/erlang/erts-*/bin",
    "usr/pgsql-*/bin",
)


def which(*names: str) -> str | None:
    """The first of these programs that exists: the newest, unwrapped one if there are several."""
    folders = [
        str(folder)
        for pattern in _HIDDEN_GLOBS
        for folder in sorted(Path("/").glob(pattern), key=_version_key, reverse=True)
    ]
    path = os.pathsep.join([*folders, os.environ.get("PATH", ""), *_HIDDEN])
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


def require(*names: str) -> str:
    found = which(*names)
    if found is None:
        raise RuntimeError(f"{' or '.join(names)} is not installed")
    return found


def version_of(program: str) -> str:
    """The first line of `--version`, in short."""
    command = [program, "--version"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    lines = (result.stdout or result.stderr).splitlines()
    return lines[0].strip() if lines else "unknown version"


def unprivileged_user(*preferred: str) -> str | None:
    """The user to run a server as, if this is root, which servers refuse; None for this user."""
    if os.geteuid() != 0:
        return None
    for name in (*preferred, "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise RuntimeError("running as root, and there is no unprivileged user to run a server as")


def _version_key(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]
