"""A TCP proxy that misbehaves on command: it stalls like a dead network, or cuts like a crash.

with Proxy("127.0.0.1", 5672) as proxy:
    connect_to(proxy.port)
    proxy.stall()        # accepts and keeps connections, forwards nothing
    proxy.resume()
    proxy.cut()          # resets every connection; new ones are served
    proxy.cut_after(n)   # forwards n more bytes towards the server, then cuts

A `Wiretap` also reads the traffic: it counts round trips and can withhold the server's answers.

with Wiretap("127.0.0.1", 5432) as tap:
    with tap.turns() as turns: ...       # turns.count afterwards
    tap.withhold_until(said)             # answers wait until `said(client's bytes)` is true
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from typing_extensions import Self

_BUFFER = 16 * 1024
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards between its own port and a server until it is told to stall or cut."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        # Small buffers: a stalled connection is noticed after kilobytes, not after megabytes.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        """Connections accepted so far."""
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._flowing = threading.Event()
        self._flowing.set()
        self._uncut = threading.Event()
        self._uncut.set()
        self._budget: int | None = None
        self._lock = threading.RLock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        self._thread.join(10)
        self._drop_all()
        self._listener.close()

    def stall(self) -> None:
        """Forward nothing more, in either direction, and close nothing."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward again, first what has accumulated."""
        self._flowing.set()

    def cut(self) -> None:
        """Reset every connection; when this returns, both ends can see it."""
        # By the serving thread: the kernel keeps a socket open while a thread selects on it.
        self._uncut.clear()
        self._uncut.wait(10)

    def cut_after(self, count: int) -> None:
        """Forward `count` more bytes towards the server, then cut."""
        with self._lock:
            self._budget = count

    def _serve(self) -> None:
        while not self._closed:
            if not self._uncut.is_set():
                self._drop_all()
                self._uncut.set()
            if not self._flowing.wait(0.02):
                continue
            with self._lock:
                sockets = [self._listener, *self._pairs]
            with suppress(OSError, ValueError):
                for sock in select.select(sockets, [], [], 0.02)[0]:
                    self._on_readable(sock)

    def _on_readable(self, sock: socket.socket) -> None:
        with self._lock:
            if not self._flowing.is_set():
                return
            if sock is self._listener:
                self._accept()
            elif sock in self._pairs:
                self._forward(sock)

    def _accept(self) -> None:
        client = self._listener.accept()[0]
        server = socket.create_connection(self._target)
        self.connections += 1
        self._pairs[client], self._pairs[server] = server, client
        self._clients.add(client)

    def _forward(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(_BUFFER)
            self._pairs[sock].sendall(self._allowed(sock, data))
        except OSError:
            data = b""
        if not data or self._budget == 0:
            self._budget = None
            self._drop(sock)

    def _allowed(self, sock: socket.socket, data: bytes) -> bytes:
        if self._budget is None or sock not in self._clients:
            return data
        data = data[: self._budget]
        self._budget -= len(data)
        return data

    def _drop_all(self) -> None:
        with self._lock:
            for sock in list(self._pairs):
                self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        other = self._pairs.pop(sock, None)
        for each in (sock, other):
            if each is not None:
                self._pairs.pop(each, None)
                self._clients.discard(each)
                with suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                each.close()


class Turns:
    """How often the client sent after the server had: the number of round trips."""

    def __init__(self) -> None:
        self.count = 0
        self.server_sent_last = True


class Wiretap(Proxy):
    """A proxy that reads the traffic. Its counts do not depend on any timing."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self._turns = Turns()
        self._withhold_until: Callable[[bytes], bool] | None = None
        self._withhold_after: bytes | None = None
        self._client_bytes = bytearray()
        self._withheld: list[tuple[socket.socket, bytes]] = []

    @contextmanager
    def turns(self) -> Iterator[Turns]:
        with self._lock:
            self._turns = turns = Turns()
        yield turns
        with self._lock:
            self._turns = Turns()

    def withhold_until(self, said: Callable[[bytes], bool]) -> None:
        """Forward no answer until `said` is true of everything that the client has sent since."""
        with self._lock:
            self._client_bytes.clear()
            self._withhold_until = said

    def withhold_after(self, word: bytes) -> None:
        """Forward no answer from the moment at which the client says this, in upper case."""
        with self._lock:
            self._withhold_after = word

    def cut_withheld(self) -> None:
        """Lose the answers that wait, and every connection; new ones are served."""
        with self._lock:
            self._withhold_until = None
            self._withheld.clear()
        self.cut()

    def _allowed(self, sock: socket.socket, data: bytes) -> bytes:
        if sock in self._clients:
            self._listen(data)
        elif self._withhold_until is not None:
            self._withheld.append((self._pairs[sock], data))
            return b""
        else:
            self._turns.server_sent_last = True
        return super()._allowed(sock, data)

    def _listen(self, data: bytes) -> None:
        self._turns.count += self._turns.server_sent_last
        self._turns.server_sent_last = False
        if self._withhold_after and self._withhold_after in data.upper():
            self._withhold_after, self._withhold_until = None, lambda _: False
        self._client_bytes += data if self._withhold_until else b""
        if self._withhold_until and self._withhold_until(bytes(self._client_bytes)):
            self._withhold_until = None
            self._turns.server_sent_last = bool(self._withheld)
            while self._withheld:
                client, answer = self._withheld.pop(0)
                client.sendall(answer)
