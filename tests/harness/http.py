"""One HTTP request, as curl makes it: the status and the text, whatever they are."""

from __future__ import annotations

import socket
from http.client import HTTPConnection
from typing import NamedTuple


class Response(NamedTuple):
    """What the server answered."""

    status: int
    text: str
    content_type: str


def request(port: int, path: str, *, method: str = "GET", host: str = "127.0.0.1") -> Response:
    connection = HTTPConnection(host, port, timeout=10)
    try:
        connection.request(method, path)
        found = connection.getresponse()
        return Response(found.status, found.read().decode(), found.headers["Content-Type"] or "")
    finally:
        connection.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
