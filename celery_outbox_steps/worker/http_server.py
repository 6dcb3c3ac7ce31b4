"""A small HTTP server in a daemon thread of the worker's main process.

It serves GET and HEAD, a few requests at a time, and each for a few seconds at most: a slow or
hostile client costs other clients nothing, and the relay never waits for one. A process that is
forked closes what it inherited, so that only the main process answers. What it answers is in
`worker.endpoints`.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from threading import Event, Lock, Semaphore, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from celery_outbox_steps.errors import ConfigurationError
from celery_outbox_steps.kinds import Address
from celery_outbox_steps.worker.endpoints import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECTIONS = 8
"""Connections that are served at a time, each in a thread. For one more, the oldest is dropped."""
PATIENCE = 3.0
"""Seconds for which a connection may last."""
NEVER = float("inf")
TICK = 0.5
"""Seconds between two looks at connections that last too long."""

_servers: WeakSet[HttpServer] = WeakSet()


class HttpServer:
    """Listens as soon as it exists, so that a taken port is known early; answers once started."""

    def __init__(self, address: Address, answer: Callable[[str], Answer]) -> None:
        self.answer = answer
        self._socket = _listening_socket(address)
        self.address = Address(address.host, self._socket.getsockname()[1])
        self._open: dict[socket.socket, float] = {}
        """Connections, by the time at which they began; the oldest first. Never, if they are ended:
        the thread of one may still hang in a collector."""
        self._lock = Lock()
        self._free = Semaphore(CONNECTIONS)
        self._closing = Event()
        self._thread = Thread(target=self._serve, name="outbox-http", daemon=True)
        _servers.add(self)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Requests that are being answered end by themselves."""
        self._closing.set()
        if not self._thread.is_alive():
            self._socket.close()
            return
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the thread's accept()
        self._thread.join(2 * TICK)

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                pass
            except OSError:  # too many open files, or it is closing
                self._closing.wait(TICK)
            else:
                self._admit(connection)
            self._drop(older_than=PATIENCE)
        self._socket.close()

    def _admit(self, connection: socket.socket) -> None:
        """Serve it in a thread of its own. While there are too many, the oldest has to go."""
        while not self._free.acquire(blocking=False):
            self._drop(older_than=PATIENCE)
            self._drop(at_most=1)
            if self._free.acquire(timeout=0.05):
                break
        with self._lock:
            self._open[connection] = monotonic()
        try:
            Thread(target=self._handle, args=(connection,), name="outbox-http", daemon=True).start()
        except RuntimeError:  # no thread can be started
            self._forget(connection)

    def _handle(self, connection: socket.socket) -> None:
        try:
            with suppress(Exception):  # a client that is gone, or that speaks no HTTP
                Handler(connection, None, self)  # type: ignore[arg-type]  # it asks for nothing more
        finally:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            del self._open[connection]
        connection.close()
        self._free.release()

    def _drop(self, *, older_than: float = 0.0, at_most: int = CONNECTIONS) -> None:
        """End connections: the thread that serves one gets an error, and closes it."""
        latest = monotonic() - older_than
        with self._lock:
            for connection in [each for each, at in self._open.items() if at <= latest][:at_most]:
                self._open[connection] = NEVER
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _leave_to_parent(self) -> None:
        """In a child: close the copies, and shut nothing down, which would reach the parent's."""
        for inherited in (self._socket, *self._open):
            with suppress(OSError):
                os.close(inherited.detach())  # close() would wait for the file of a request


class Handler(BaseHTTPRequestHandler):
    """One request. `BaseHTTPRequestHandler` limits the length of a request and of its headers."""

    server: HttpServer  # type: ignore[assignment]  # it needs no more of a server than the answer
    timeout = PATIENCE
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def do_GET(self) -> None:
        try:
            answer = self.server.answer(self.path.partition("?")[0])
        except Exception as exc:  # noqa: BLE001  a collector of the project's
            text = f"The metrics can't be shown: {type(exc).__name__} in a collector.\n"
            answer = Answer(HTTPStatus.INTERNAL_SERVER_ERROR, text.encode())
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815  the name that the parent looks for

    def version_string(self) -> str:
        return "celery-outbox"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the parent's name
        """A probe that comes every few seconds is not news."""


def _listening_socket(address: Address) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(where)
            listening.listen()
        except OSError:
            listening.close()
            raise
    except OSError as exc:
        raise _refusal(address, exc) from exc
    listening.settimeout(TICK)
    return listening


def _refusal(address: Address, error: OSError) -> ConfigurationError:
    if error.errno == errno.EADDRINUSE:
        return ConfigurationError(
            f"CELERY_OUTBOX_HTTP (--outbox-http): port {address.port} of {address.host} is taken. "
            "Choose another one; each worker of a host needs its own."
        )
    return ConfigurationError(
        f"CELERY_OUTBOX_HTTP (--outbox-http) can't listen on {address}: "
        f"{error.strerror or error}. Name an address of this host and a port that is allowed."
    )


def _leave_all_to_parent() -> None:
    for server in list(_servers):
        server._leave_to_parent()  # noqa: SLF001  of this module
    _servers.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)
