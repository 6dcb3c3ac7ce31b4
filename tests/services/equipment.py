"""Everything that the suite needs from the machine: found, installed or started, and told.

`provide` never raises for what is missing: `missing` says what and why, and the suite decides
whether that is a failure. `put_away` stops what `provide` started, and nothing else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from . import NAMES, PROGRAMS, TITLES, Service, debian, docker, finder, private, programs


@dataclass
class Equipment:
    """What there is to test against."""

    services: list[Service] = field(default_factory=list)
    programs: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def provide(self) -> None:
        """Find, install or start it all, and put the addresses into the environment."""
        for name in NAMES:
            self._provide_service(name)
        for name in NAMES:
            self._provide_server_program(name)
        for name in PROGRAMS:
            self._provide_program(name)

    def put_away(self) -> None:
        """Stop what we started."""
        for service in self.services:
            if service.pids:
                private.stop(service)
        if any(service.found == docker.FOUND for service in self.services):
            docker.stop()

    def lines(self) -> list[str]:
        """What the tests ran against, for the summary."""
        consequence = "a failure in CI" if os.environ.get("CI") else "its tests were SKIPPED"
        return [
            *(f"{TITLES[service.name]:<16} {_where(service)}" for service in self.services),
            *(f"{name:<16} {text}" for name, text in self.programs.items()),
            *(f"{name:<16} MISSING, {consequence}: {why}" for name, why in self.missing.items()),
        ]

    def _provide_service(self, name: str) -> None:
        only_private = os.environ.get("PRIVATE_SERVICES") == "1"
        try:
            service = finder.provide(name, _say, only_private=only_private)
        except finder.MissingServiceError as error:
            self.missing[TITLES[name]] = str(error)
            return
        self.services.append(service)
        os.environ.update(service.environment())
        _say(f"{TITLES[name]} {_where(service)}")

    def _provide_server_program(self, name: str) -> None:
        """For the tests that mistreat a server: that one must be theirs."""
        if not private.possible(name):
            _try_to_install(name)
        if not private.possible(name):
            self.missing[f"private {name}"] = "its server program is not installed"

    def _provide_program(self, name: str) -> None:
        if programs.which(name) is None:
            _try_to_install(name)
        path = programs.which(name)
        if path is None:
            self.missing[name] = "the program is not installed"
        else:
            self.programs[name] = f"{programs.version_of(path)} at {path}"


def _where(service: Service) -> str:
    return f"{service.version} at {service.address}, {service.found}"


def _try_to_install(name: str) -> None:
    if not debian.possible():
        return
    try:
        debian.install(debian.SERVERS[name], _say)
    except RuntimeError as error:
        _say(str(error))


def _say(text: str) -> None:
    print(f"services: {text}", flush=True)
