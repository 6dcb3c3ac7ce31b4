"""Where is each service? The environment, what we started, the standard port: in that order.

`find` only looks and asks; it starts nothing, so the tests themselves use it. A variable that
is set is an order: if nothing answers there we do not quietly take another server.
`provide` goes on where `find` found nothing: a private server, Debian's packages, Docker.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from urllib.parse import urlsplit

from . import TITLES, Service, debian, docker, private
from .address import STANDARD_PORTS, ask, at_port
from .handshake import HandshakeError

Say = Callable[[str], None]


class MissingServiceError(Exception):
    """No server answers, and the text says what was tried."""


def find(name: str) -> Service:
    """The service that is there already, or `MissingServiceError` with the reason."""
    ordered = _from_environment(name)
    if ordered is not None:
        return _ask_or_explain(*ordered)
    for started in private.started(name):
        return started
    return _ask_or_explain(at_port(name, STANDARD_PORTS[name]), "the standard port")


def provide(name: str, say: Say, *, only_private: bool = False, install: bool = True) -> Service:
    """`find`, and else start: our own server, installed first if need be, or Docker's."""
    reasons = []
    if not only_private:
        try:
            return find(name)
        except MissingServiceError as missing:
            reasons.append(str(missing))
            if _from_environment(name) is not None:
                raise
    ways: list[tuple[Callable[[], bool], Callable[[], Service]]] = [
        (lambda: private.possible(name), lambda: private.start(name, say=say)),
        (lambda: install and debian.possible(), lambda: _installed(name, say)),
        (docker.possible, lambda: docker.start(name, say)),
    ]
    for possible, start in ways:
        if possible():
            try:
                return start()
            except (OSError, RuntimeError) as error:
                reasons.append(str(error))
    reasons.append(_advice(name))
    raise MissingServiceError("; ".join(reasons))


def _from_environment(name: str) -> tuple[Service, str] | None:
    variable = {"postgres": "PGHOST", "mysql": "MYSQL_HOST"}.get(name, f"{name.upper()}_URL")
    port_variable = variable.replace("HOST", "PORT")
    if not os.environ.get(variable) and not os.environ.get(port_variable):
        return None
    default_port = STANDARD_PORTS[name]
    if variable.endswith("_URL"):
        url = os.environ[variable]
        parts = urlsplit(url)
        host, port = parts.hostname or "127.0.0.1", parts.port or default_port
        return Service(name, host, port, url=url), f"{variable} is set"
    host = os.environ.get(variable) or "127.0.0.1"
    port = int(os.environ.get(port_variable) or default_port)
    return Service(name, host, port), f"{variable}/{port_variable} is set"


def _ask_or_explain(service: Service, context: str) -> Service:
    try:
        version = ask(service)
    except HandshakeError as error:
        title = TITLES[service.name]
        text = f"{title} does not answer at {service.address} ({context}): {error}"
        raise MissingServiceError(text) from error
    return Service(**{**vars(service), "version": version})


def _installed(name: str, say: Say) -> Service:
    debian.install(debian.SERVERS[name], say)
    return private.start(name, say=say, found="installed and started")


def _advice(name: str) -> str:
    packages = " ".join(debian.SERVERS[name])
    return f"to have one: install {packages}, start Docker, or set the variables for a server"
