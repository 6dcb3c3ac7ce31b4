"""A TCP proxy that listens: it counts turns of the conversation and can withhold the answers.

A turn is a message of the client after one of the server: the number of times that somebody had
to wait for the network. It does not depend on how fast anything is.

    with Wiretap("127.0.0.1", 5432) as tap:
        connect_to(tap.port)
        with tap.turns() as turns: ...       # turns.count afterwards
        tap.withhold_until(said)             # answers wait until `said(bytes of the client)`
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from typing_extensions import Self


class Turns:
    """How often the client spoke after the server had."""

    def __init__(self) -> None:
        self.count = 0
        self.server_spoke_last = True


class Wiretap:
    """Forwards between its own port and a server."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._turns = Turns()
        self._answers = threading.Event()
        self._answers.set()
        self._said: Callable[[bytes], bool] | None = None
        self._heard = bytearray()
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, name="wiretap", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._answers.set()
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    @contextmanager
    def turns(self) -> Iterator[Turns]:
        with self._lock:
            self._turns = turns = Turns()
        yield turns
        with self._lock:
            self._turns = Turns()

    def withhold_until(self, said: Callable[[bytes], bool]) -> None:
        """Let no answer through until the client has said all of it."""
        self._heard.clear()
        self._said = said
        self._answers.clear()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                for pump in (self._listen_to_client, self._listen_to_server):
                    threading.Thread(target=pump, args=(client, server), daemon=True).start()

    def _listen_to_client(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                self._note_client(data)
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _listen_to_server(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                self._answers.wait()
                with self._lock:
                    self._turns.server_spoke_last = True
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)

    def _note_client(self, data: bytes) -> None:
        with self._lock:
            if self._turns.server_spoke_last:
                self._turns.count += 1
            self._turns.server_spoke_last = False
        if not self._answers.is_set() and self._said is not None:
            self._heard += data
            if self._said(bytes(self._heard)):
                self._answers.set()
