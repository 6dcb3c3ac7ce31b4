"""Ask a server, in its own protocol, whether it would let the tests in.

Each function logs in as the tests do and returns the server's version; anything else is a
`HandshakeError` that says what went wrong. An open port alone proves nothing. No driver is
imported: this runs before the virtual environment exists.
"""

from __future__ import annotations

import socket
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class HandshakeError(Exception):
    """Nothing there, something else there, or it refuses our login."""


def postgres(host: str, port: int, user: str = "postgres", timeout: float = 5.0) -> str:
    """Log in to PostgreSQL without a password, up to ReadyForQuery."""
    parameters = b"".join(
        part.encode() + b"\0" for part in ("user", user, "database", "postgres", "")
    )
    body = struct.pack("!i", 196608) + parameters
    with _conversation(host, port, timeout) as wire:
        wire.send(struct.pack("!i", len(body) + 4) + body)
        return _postgres_answer(wire)


def mysql(host: str, port: int, user: str = "root", timeout: float = 5.0) -> str:
    """Log in to MariaDB or MySQL with an empty password."""
    with _conversation(host, port, timeout) as wire:
        greeting = _mysql_packet(wire)
        if greeting[0] != 10:
            raise HandshakeError(f"not a MySQL 4.1+ greeting: {greeting[:60]!r}")
        version = greeting[1:].split(b"\0", 1)[0].decode("ascii", "replace")
        # PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH, utf8mb4, an empty auth response.
        login = struct.pack("<IIB23x", 0x00088200, 1 << 24, 45)
        login += user.encode() + b"\0\0mysql_native_password\0"
        wire.send(_mysql_frame(1, login))
        answer = _mysql_packet(wire)
        if answer[0] == 0xFE:  # the account uses another method; empty means empty there too
            wire.send(_mysql_frame(3, b""))
            answer = _mysql_packet(wire)
        if answer[0] == 0xFF:
            raise HandshakeError(answer[9:].decode("utf-8", "replace"))
        wire.send(_mysql_frame(0, b"\x01"))  # COM_QUIT
    return version.removeprefix("5.5.5-")


def rabbitmq(url: str, timeout: float = 5.0) -> str:
    """Open and close an AMQP 0-9-1 connection, login and virtual host included."""
    parts = urlsplit(url)
    vhost = unquote(parts.path[1:]) or "/"
    login = f"\0{unquote(parts.username or 'guest')}\0{unquote(parts.password or 'guest')}"
    with _conversation(parts.hostname or "127.0.0.1", parts.port or 5672, timeout) as wire:
        wire.send(b"AMQP\x00\x00\x09\x01")
        start = _amqp_method(wire, (10, 10))
        response = struct.pack("!I", 0) + _short("PLAIN") + _long(login) + _short("en_US")
        wire.send(_amqp_frame(10, 11, response))
        tune = _amqp_method(wire, (10, 30))
        wire.send(_amqp_frame(10, 31, tune[:8]))
        wire.send(_amqp_frame(10, 40, _short(vhost) + _short("") + b"\0"))
        _amqp_method(wire, (10, 41))
        wire.send(_amqp_frame(10, 50, struct.pack("!H", 200) + _short("") + bytes(4)))
        _amqp_method(wire, (10, 51))
    return _amqp_version(start)


def redis(url: str, timeout: float = 5.0) -> str:
    """PING, and read the version from INFO."""
    parts = urlsplit(url)
    with _conversation(parts.hostname or "127.0.0.1", parts.port or 6379, timeout) as wire:
        if parts.password:
            words = [parts.username] if parts.username else []
            _redis_call(wire, "AUTH", *words, unquote(parts.password))
        if _redis_call(wire, "PING") != "PONG":
            raise HandshakeError("no PONG to our PING")
        information = _redis_call(wire, "INFO", "server")
    lines = dict(line.split(":", 1) for line in information.splitlines() if ":" in line)
    return lines.get("redis_version", "unknown version")


class _Wire:
    """A socket that reads exactly what is asked of it."""

    def __init__(self, connection: socket.socket) -> None:
        self.send: Callable[[bytes], None] = connection.sendall
        self._file = connection.makefile("rb")

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise HandshakeError("the server hung up during the handshake")
        return data

    def line(self) -> str:
        return self._file.readline(65536).decode("utf-8", "replace").rstrip("\r\n")


@contextmanager
def _conversation(host: str, port: int, timeout: float) -> Iterator[_Wire]:
    try:
        with _connect(host, port, timeout) as connection:
            yield _Wire(connection)
    except (OSError, struct.error, IndexError) as error:
        raise HandshakeError(str(error) or type(error).__name__) from error


def _connect(host: str, port: int, timeout: float) -> socket.socket:
    if not host.startswith("/"):
        return socket.create_connection((host, port), timeout)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout)
    connection.connect(f"{host}/.s.PGSQL.{port}")
    return connection


def _postgres_answer(wire: _Wire) -> str:
    version = ""
    while True:
        kind = wire.read(1)
        if kind not in b"RSKZEN":
            raise HandshakeError(f"not a PostgreSQL answer: {kind!r}")
        body = wire.read(struct.unpack("!i", wire.read(4))[0] - 4)
        if kind == b"R" and body[:4] != bytes(4):
            raise HandshakeError("the server wants a password; the tests log in without one")
        if kind == b"E":
            texts = {part[:1]: part[1:] for part in body.split(b"\0")}
            raise HandshakeError(texts.get(b"M", body).decode("utf-8", "replace"))
        if body.startswith(b"server_version\0"):
            version = body.split(b"\0")[1].decode()
        if kind == b"Z":
            wire.send(b"X\0\0\0\x04")
            return version


def _mysql_packet(wire: _Wire) -> bytes:
    size = int.from_bytes(wire.read(4)[:3], "little")
    return wire.read(size)


def _mysql_frame(sequence: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([sequence]) + body


def _short(text: str) -> bytes:
    return bytes([len(text.encode())]) + text.encode()


def _long(text: str) -> bytes:
    return struct.pack("!I", len(text.encode())) + text.encode()


def _amqp_frame(class_id: int, method_id: int, arguments: bytes) -> bytes:
    payload = struct.pack("!HH", class_id, method_id) + arguments
    return struct.pack("!BHI", 1, 0, len(payload)) + payload + b"\xce"


def _amqp_method(wire: _Wire, expected: tuple[int, int]) -> bytes:
    kind, _, size = struct.unpack("!BHI", wire.read(7))
    if kind != 1 or size > 1 << 20:
        raise HandshakeError("not an AMQP 0-9-1 method frame")
    payload = wire.read(size + 1)[:-1]
    method = struct.unpack("!HH", payload[:4])
    if method == (10, 50):
        raise HandshakeError(payload[7 : 7 + payload[6]].decode("utf-8", "replace"))
    if method != expected:
        raise HandshakeError(f"AMQP method {method} where {expected} was due")
    return payload[4:]


def _amqp_version(start: bytes) -> str:
    """The `version` of the server's properties, a table entry of type S."""
    _, found, rest = start.partition(b"\x07versionS")
    return rest[4 : 4 + struct.unpack("!I", rest[:4])[0]].decode() if found else "unknown version"


def _redis_call(wire: _Wire, *words: str) -> str:
    parts = [f"*{len(words)}\r\n", *(f"${len(w.encode())}\r\n{w}\r\n" for w in words)]
    wire.send("".join(parts).encode())
    answer = wire.line()
    if answer.startswith("$"):
        return wire.read(int(answer[1:]) + 2)[:-2].decode("utf-8", "replace")
    if answer.startswith("+"):
        return answer[1:]
    raise HandshakeError(answer[:200] or "no answer")
