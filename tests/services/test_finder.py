"""Where we look for a service, and what we say when it is not there."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from tests import helpers
from tests.services import docker, finder, private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VARIABLES = {
    "postgres": {"PGHOST": "127.0.0.1", "PGPORT": "{port}"},
    "mysql": {"MYSQL_HOST": "127.0.0.1", "MYSQL_PORT": "{port}"},
    "rabbitmq": {"RABBITMQ_URL": "amqp://guest:guest@127.0.0.1:{port}//"},
    "redis": {"REDIS_URL": "redis://127.0.0.1:{port}/0"},
}


@pytest.fixture
def impostor() -> Iterator[int]:
    """An open port whose server speaks none of our protocols."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_greet_and_hang_up, args=(listener,), daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("name", VARIABLES)
def test_an_open_port_is_not_a_service(
    name: str, impostor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _order(name, impostor, monkeypatch)
    with pytest.raises(finder.MissingServiceError, match=str(impostor)):
        finder.find(name)


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_is_an_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even `provide` starts nothing else when the server that was named is not there."""
    _order(name, private.free_port(), monkeypatch)
    with pytest.raises(finder.MissingServiceError, match=r"is set\)"):
        finder.provide(name, print)


def test_a_missing_service_skips_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    _order("redis", private.free_port(), monkeypatch)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="Redis does not answer"):
        helpers.require_service("redis")


def test_a_missing_service_fails_the_test_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    _order("redis", private.free_port(), monkeypatch)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="Redis does not answer"):
        helpers.require_service("redis")


def test_a_docker_client_without_an_engine_is_no_way_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\nexit 1\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not docker.possible()


def test_wait_for_returns_the_value_that_came_true() -> None:
    values = iter([0, None, "", 42])
    assert helpers.wait_for(lambda: next(values), pause=0) == 42


def test_wait_for_fails_with_the_message() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"no row was claimed \(waited 0.05 s"):
        helpers.wait_for(lambda: False, timeout=0.05, message="no row was claimed")


@pytest.fixture(autouse=True)
def _forget_what_was_found() -> Iterator[None]:
    helpers._find_service.cache_clear()
    yield
    helpers._find_service.cache_clear()


def _order(name: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in VARIABLES[name].items():
        monkeypatch.setenv(key, value.format(port=port))


def _greet_and_hang_up(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.sendall(b"220 mail.example ready when you are, and not before\r\n")
