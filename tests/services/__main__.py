"""`python3 -m tests.services up | status | down | packages`.

    eval "$(python3 -m tests.services up)"     # variables on stdout, progress on stderr
    python3 -m tests.services status
    python3 -m tests.services down             # stops only what `up` started

`packages` installs what mysqlclient is compiled with. The whole suite is `tests.services.suite`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from . import NAMES, PROGRAMS, TITLES, Service, debian, docker, finder, private, programs


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.services")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="find or start services, print their variables")
    up.add_argument("names", nargs="*", choices=[*NAMES, []], help="all four by default")
    up.add_argument("--private", action="store_true", help="start our own, whatever runs already")
    up.add_argument("--no-install", action="store_true", help="never install Debian packages")
    commands.add_parser("status", help="what answers, and where")
    commands.add_parser("down", help="stop what `up` started, by process id")
    commands.add_parser("packages", help="install the packages that compiling needs")
    options = parser.parse_args(arguments)
    if options.command == "up":
        return _up(options.names or list(NAMES), options.private, not options.no_install)
    return {"status": _status, "down": _down, "packages": _packages}[options.command]()


def say(text: str) -> None:
    print(f"services: {text}", file=sys.stderr, flush=True)


def _up(names: list[str], only_private: bool, install: bool) -> int:
    missing = 0
    for name in names:
        try:
            found = finder.provide(name, say, only_private=only_private, install=install)
        except finder.MissingServiceError as error:
            missing += 1
            say(f"{TITLES[name]} is missing: {error}")
            continue
        say(line(found))
        for key, value in found.environment().items():
            print(f"export {key}={shlex.quote(value)}", flush=True)
    return 1 if missing and os.environ.get("CI") else 0


def line(service: Service) -> str:
    """One service in one line, for people."""
    title = TITLES[service.name]
    return f"{title} {service.version} at {service.address} ({service.found})"


def _status() -> int:
    for name in NAMES:
        try:
            print(line(finder.find(name)))
        except finder.MissingServiceError as error:
            print(f"{TITLES[name]}: missing: {error}")
    for name in PROGRAMS:
        path = programs.which(name)
        print(f"{name}: {programs.version_of(path) if path else 'not installed'}")
    return 0


def _down() -> int:
    for service in private.stop_all():
        say(f"stopped {TITLES[service.name]} at {service.address}")
    if docker.possible():
        docker.stop()
    return 0


def _packages() -> int:
    """Never fails: pip's own message is the better one if something is still missing."""
    packages = debian.missing_build_packages()
    if packages and not debian.possible():
        say(f"mysqlclient is compiled and needs these packages: {' '.join(packages)}")
    elif packages:
        try:
            debian.install(packages, say)
        except RuntimeError as error:
            say(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
