"""The HTTP server of a worker: what it answers, whom it refuses, and what a bad client costs."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import ExitStack
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from celery_outbox_steps.errors import ConfigurationError
from celery_outbox_steps.kinds import Address
from celery_outbox_steps.worker import http_server
from celery_outbox_steps.worker.endpoints import Answer
from celery_outbox_steps.worker.http_server import CONNECTIONS, HttpServer
from tests.harness.http import request
from tests.helpers import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator


def answer(path: str) -> Answer:
    if path == "/breaks":
        raise LookupError("secret")
    return Answer(HTTPStatus.OK if path == "/livez" else HTTPStatus.NOT_FOUND, f"{path}\n".encode())


def serve(host: str = "127.0.0.1", port: int = 0) -> HttpServer:
    server = HttpServer(Address(host, port), answer)
    server.start()
    return server


@pytest.fixture
def port() -> Iterator[int]:
    server = serve()
    yield server.address.port
    server.close()


def test_a_get_is_answered(port: int) -> None:
    assert request(port, "/livez") == (200, "/livez\n", "text/plain; charset=utf-8")
    assert request(port, "/livez?verbose=1").text == "/livez\n"


def test_a_head_gets_the_same_without_a_body(port: int) -> None:
    assert request(port, "/livez", method="HEAD") == (200, "", "text/plain; charset=utf-8")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "X"])
def test_other_methods_are_refused(port: int, method: str) -> None:
    found = request(port, "/livez", method=method)
    assert (found.status, found.content_type) == (501, "text/plain; charset=utf-8")


@pytest.mark.parametrize("path", ["/", "/livez/", "/x/../livez", "//livez/..", "/%6civez", "livez"])
def test_only_the_exact_path_is_answered(port: int, path: str) -> None:
    assert request(port, path).status == 404


def test_an_error_in_an_answer_is_a_500_without_its_text(port: int) -> None:
    found = request(port, "/breaks")
    assert found.status == 500
    assert "LookupError" in found.text
    assert "secret" not in found.text


@pytest.mark.parametrize(
    "said", [b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_request_gets_no_answer_and_hurts_no_other(port: int, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(said)
        assert b"/livez" not in client.recv(1000)
    assert request(port, "/livez").status == 200


def test_clients_that_send_nothing_do_not_keep_a_probe_waiting(port: int) -> None:
    with ExitStack() as idle:
        for _ in range(3 * CONNECTIONS):
            client = socket.create_connection(("127.0.0.1", port), timeout=10)
            idle.enter_context(client).sendall(b"GET /li")
        assert request(port, "/livez").status == 200
        assert threading.active_count() < 3 * CONNECTIONS


def test_an_answer_that_hangs_beside_clients_that_send_nothing_does_not_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread can't be ended: the next one must go in its place."""
    released = threading.Event()

    def hang(path: str) -> Answer:
        if path == "/metrics":
            released.wait(30)
        return answer(path)

    server = HttpServer(Address("127.0.0.1", 0), hang)
    server.start()
    where = ("127.0.0.1", server.address.port)
    with ExitStack() as idle:
        idle.enter_context(socket.create_connection(where)).sendall(
            b"GET /metrics HTTP/1.0\r\n\r\n"
        )
        for _ in range(2 * CONNECTIONS):
            idle.enter_context(socket.create_connection(where)).sendall(b"GET /li")
        began = monotonic()
        assert request(server.address.port, "/livez").status == 200
        assert monotonic() - began < http_server.PATIENCE / 2
        released.set()
    server.close()


def test_many_connections_that_send_nothing_are_admitted_without_a_wait(port: int) -> None:
    began = monotonic()
    with ExitStack() as idle:
        for _ in range(20 * CONNECTIONS):
            idle.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        assert request(port, "/livez").status == 200
    assert monotonic() - began < 4  # with a wait of 50 ms for each it was 8


def test_a_client_that_sends_byte_by_byte_is_dropped_in_the_end(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "PATIENCE", 0.3)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.settimeout(0.02)

        def is_dropped() -> bool:
            try:
                client.sendall(b"a")
                return client.recv(1000) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_for(is_dropped, 10)


def test_a_port_that_is_taken_is_refused_with_the_way_out(port: int) -> None:
    with pytest.raises(ConfigurationError) as refused:
        serve(port=port)
    assert str(refused.value) == (
        f"CELERY_OUTBOX_HTTP (--outbox-http): port {port} of 127.0.0.1 is taken. "
        "Choose another one; each worker of a host needs its own."
    )


@pytest.mark.parametrize("host", ["192.0.2.1", "host.invalid"])
def test_an_address_that_is_not_here_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"can't listen on {host}:9100: .+\. Name an"):
        serve(host, 9100)


def test_ipv6() -> None:
    try:
        server = serve("::1")
    except ConfigurationError:
        pytest.skip("this machine has no IPv6")
    assert request(server.address.port, "/livez", host="::1").status == 200
    server.close()


def test_a_server_that_is_closed_leaves_its_port_to_others() -> None:
    server = serve()
    port = server.address.port
    server.close()
    with pytest.raises(OSError, match="refused"):
        request(port, "/livez")
    again = serve(port=port)
    assert request(port, "/livez").status == 200
    again.close()


def test_a_server_that_was_never_started_can_be_closed() -> None:
    server = HttpServer(Address("127.0.0.1", 0), answer)
    server.close()
    serve(port=server.address.port).close()


def test_a_child_of_the_process_does_not_keep_the_port() -> None:
    server = serve()
    port = server.address.port
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"GET /livez HTTP/1.0\r\n")  # a connection that the child inherits too
        wait_for(lambda: server._open)
        started, end = os.pipe(), os.pipe()
        child = os.fork()
        if not child:
            os.write(started[1], b"1")
            os.read(end[0], 1)
            os._exit(0)
        try:
            assert os.read(started[0], 1)
            assert request(port, "/livez").status == 200
            client.sendall(b"\r\n")
            while client.recv(1000):  # until the other end has closed it, in every process
                pass
            server.close()
            serve(port=port).close()
        finally:
            os.write(end[1], b"1")
            os.waitpid(child, 0)
            for each in (*started, *end):
                os.close(each)
