"""How each server is set up in an empty directory and started there, in the foreground.

`start` yields the processes in the order in which they must run; the last one is the server.
Every server listens on the loopback interface only, and trades durability for speed: the
machine may lose this data, the tests do not care.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import programs

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "postgres": (("initdb",), ("postgres",)),
    "mysql": (("mariadbd",), ("mariadb-install-db",)),
    "rabbitmq": (("rabbitmq-server",), ("epmd",)),
    "redis": (("redis-server", "valkey-server"),),
}
USERS = {
    "postgres": ("postgres",),
    "mysql": ("mysql",),
    "rabbitmq": ("rabbitmq",),
    "redis": ("redis",),
}
# PostgreSQL waits for its clients on SIGTERM; SIGINT is its "fast" shutdown.
STOP_SIGNALS = {"postgres": signal.SIGINT}
Processes = Iterator["subprocess.Popen[bytes]"]


def start(name: str, port: int, data: Path, owner: str | None) -> Processes:
    """Set up and start one server; yields each process as soon as it runs."""
    recipe = {"postgres": _postgres, "mysql": _mysql, "rabbitmq": _rabbitmq, "redis": _redis}
    return recipe[name](port, data, owner)


def _postgres(port: int, data: Path, owner: str | None) -> Processes:
    cluster = str(data / "cluster")
    initdb = [programs.require("initdb"), "-D", cluster, "-U", "postgres", "-A", "trust"]
    _run([*initdb, "-E", "UTF8", "--no-locale", "--no-sync"], data, owner)
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "fsync": "off",
        "max_connections": 200,
    }
    flags = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    yield _spawn([programs.require("postgres"), "-D", cluster, *flags], data, owner)


def _mysql(port: int, data: Path, owner: str | None) -> Processes:
    where = f"--datadir={data / 'data'}"
    install = programs.require("mariadb-install-db")
    method = "--auth-root-authentication-method=normal"
    _run([install, "--no-defaults", method, "--skip-test-db", where], data, owner)
    yield _spawn(
        [
            programs.require("mariadbd"),
            "--no-defaults",
            where,
            f"--port={port}",
            "--bind-address=127.0.0.1",
            "--socket=private.sock",  # relative to the data: a long path would not fit
            f"--pid-file={data / 'mariadbd.pid'}",
            "--character-set-server=utf8mb4",
            "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=64M",
        ],
        data,
        owner,
    )


def _rabbitmq(port: int, data: Path, owner: str | None) -> Processes:
    from .private import free_port

    names = free_port()
    yield _spawn(
        [programs.require("epmd"), "-port", str(names), "-address", "127.0.0.1"], data, owner
    )
    environment = _rabbitmq_environment(port, names, free_port(), data)
    for file, text in (("enabled_plugins", "[]."), ("rabbitmq.conf", ""), ("environment", "")):
        (data / file).write_text(text + "\n")
        (data / file).chmod(0o644)
    yield _spawn([programs.require("rabbitmq-server")], data, owner, environment)


def _rabbitmq_environment(port: int, names: int, distribution: int, data: Path) -> dict[str, str]:
    return {
        "HOME": str(data),
        "ERL_EPMD_PORT": str(names),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_FLAGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_NODENAME": f"outbox-tests-{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(data / "mnesia"),
        "RABBITMQ_LOG_BASE": str(data / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(data / "enabled_plugins"),
        "RABBITMQ_CONFIG_FILE": str(data / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(data / "environment"),
    }


def _redis(port: int, data: Path, owner: str | None) -> Processes:
    server = programs.require("redis-server", "valkey-server")
    settings = {"port": port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": data}
    flags = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    yield _spawn([server, *flags], data, owner)


def _spawn(
    command: list[str], data: Path, owner: str | None, extra: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """In its own session, so that Ctrl-C in the terminal reaches us and not the server."""
    with (data / "output.log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **_identity(data, owner, extra),
        )


def _run(command: list[str], data: Path, owner: str | None) -> None:
    """A command that sets something up: it ends, or `RuntimeError` says how it failed."""
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, **_identity(data, owner, None)
    )
    if result.returncode:
        raise RuntimeError(f"{command[0]} failed: {(result.stderr or result.stdout)[-1500:]}")


def _identity(data: Path, owner: str | None, extra: Mapping[str, str] | None) -> dict[str, Any]:
    """Working directory, environment and user of a child."""
    inherited = {key: os.environ[key] for key in ("PATH", "LANG", "TZ") if key in os.environ}
    environment = {**inherited, "HOME": str(data), **(extra or {})}
    if owner is None:
        return {"cwd": data, "env": environment}
    entry = pwd.getpwnam(owner)
    identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    return {"cwd": data, "env": environment, **identity}
