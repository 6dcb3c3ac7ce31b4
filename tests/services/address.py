"""Addresses: the standard ports, a server of ours on this machine, and asking who is there."""

from __future__ import annotations

import os

from . import Service, handshake

STANDARD_PORTS = {"postgres": 5432, "mysql": 3306, "rabbitmq": 5672, "redis": 6379}


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


def _url(name: str, port: int) -> str:
    if name == "rabbitmq":
        return f"amqp://guest:guest@127.0.0.1:{port}//"
    return f"redis://127.0.0.1:{port}/0" if name == "redis" else ""
