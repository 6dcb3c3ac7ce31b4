"""Where is each service? The environment, what we started, the standard port: in that order.

`find` only looks and asks; it starts nothing, so the tests themselves use it. A variable that
is set is an order: if nothing answers there we do not quietly take another server.
`provide` goes on where `find` found nothing: a private server, Debian's packages, Docker.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from urllib.parse import urlsplit

from . import TITLES, Service, handshake
from .handshake import HandshakeError

Say = Callable[[str], None]
STANDARD_PORTS = {"postgres": 5432, "mysql": 3306, "rabbitmq": 5672, "redis": 6379}


class MissingServiceError(Exception):
    """No server answers, and the text says what was tried."""


def find(name: str) -> Service:
    """The service that is there already, or `MissingServiceError` with the reason."""
    from . import private  # it needs `ask` from here

    ordered = _from_environment(name)
    if ordered is not None:
        return _ask_or_explain(*ordered)
    for started in private.started(name):
        return started
    host, port, url = "127.0.0.1", STANDARD_PORTS[name], _url(name, STANDARD_PORTS[name])
    return _ask_or_explain(Service(name, host, port, url=url), "no server on the standard port")


def provide(name: str, say: Say, *, only_private: bool = False, install: bool = True) -> Service:
    """`find`, and else start: our own server, installed first if need be, or Docker's."""
    from . import debian, docker, private

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


def ask(service: Service, timeout: float = 5.0) -> str:
    """One handshake with it: the version, or `HandshakeError`."""
    if service.name == "postgres":
        user = os.environ.get("PGUSER", "postgres")
        return handshake.postgres(service.host, service.port, user, timeout)
    if service.name == "mysql":
        return handshake.mysql(service.host, service.port, timeout=timeout)
    shake = handshake.rabbitmq if service.name == "rabbitmq" else handshake.redis
    return shake(service.url, timeout=timeout)


def at_port(name: str, port: int) -> Service:
    """The description of a server of ours on this machine."""
    return Service(name, "127.0.0.1", port, url=_url(name, port))


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
    from . import debian, private

    debian.install(debian.SERVERS[name], say)
    return private.start(name, say=say, found="installed and started")


def _advice(name: str) -> str:
    from . import debian

    packages = " ".join(debian.SERVERS[name])
    return f"to have one: install {packages}, start Docker, or set the variables for a server"


def _url(name: str, port: int) -> str:
    if name == "rabbitmq":
        return f"amqp://guest:guest@127.0.0.1:{port}//"
    return f"redis://127.0.0.1:{port}/0" if name == "redis" else ""
