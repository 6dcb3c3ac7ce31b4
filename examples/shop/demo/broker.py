"""Taking the broker away, and giving it back.

For the directory, a plain file replaces the link through which messages are published. For a
server, the worker connects through a port of the demo, and that port is closed. Your server is not
touched.
"""

import contextlib
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

PORTS = {"amqp": 5672, "pyamqp": 5672, "redis": 6379}


class FileBroker:
    url = "filebroker://localhost"
    how = "a plain file takes the place of its directory"

    def __init__(self, home: Path) -> None:
        self._out = home / "broker" / "out"

    @property
    def is_there(self) -> bool:
        return self._out.is_dir()

    def take_away(self) -> None:
        self._out.unlink()
        self._out.write_text("no broker here")

    def bring_back(self) -> None:
        self._out.unlink()
        self._out.symlink_to(self._out.with_name("queue"))


class ServerBroker:
    how = "its port refuses connections, open ones are cut"

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in PORTS:
            raise SystemExit(
                f"BROKER_URL: the demo knows {', '.join(PORTS)}, not {parts.scheme!r}."
            )
        self._server = (parts.hostname or "localhost", parts.port or PORTS[parts.scheme])
        self._open: set[socket.socket] = set()
        self._listener = _listen(0)
        self._port = self._listener.getsockname()[1]
        login = parts.netloc.rpartition("@")[0]
        netloc = f"{login}{'@' if login else ''}127.0.0.1:{self._port}"
        self.url = urlunsplit(parts._replace(netloc=netloc))
        self._accept_in_background()

    def take_away(self) -> None:
        listener, self._listener = self._listener, None
        _close(listener)
        for each in list(self._open):
            _close(each)

    def bring_back(self) -> None:
        self._listener = _listen(self._port)
        self._accept_in_background()

    def _accept_in_background(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                if listener is not self._listener:
                    _close(client)
                    return
                server = socket.create_connection(self._server)
                self._open |= {client, server}
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for each in (source, target):
            self._open.discard(each)
            _close(each)


def _listen(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port), backlog=64)


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
