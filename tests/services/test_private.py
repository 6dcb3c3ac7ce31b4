"""Private servers start, answer their own protocol, and are stopped by process id."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers import require_program, wait_for
from tests.services import NAMES, ROOT, Service, address, handshake, private, recipes

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=NAMES)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    name: str = request.param
    for names in recipes.PROGRAMS[name]:
        require_program(*names)
    service = private.start(name, home=tmp_path_factory.mktemp("services"))
    yield service
    if Path(service.directory).exists():
        private.stop(service)


def test_a_private_server_lets_the_tests_in(server: Service) -> None:
    assert address.ask(server) == server.version != ""
    assert server.port != address.STANDARD_PORTS[server.name]
    assert server.found == "started privately"


def test_a_private_server_is_found_again_by_its_note(server: Service) -> None:
    [again] = private.started(server.name, home=Path(server.directory).parent)
    assert (again.address, again.version) == (server.address, server.version)
    assert again.pids == (), "a process that only found it must not stop it"


def test_no_server_passes_for_another(server: Service) -> None:
    others = [name for name in NAMES if name != server.name]
    for other in others:
        with pytest.raises(handshake.HandshakeError):
            address.ask(address.at_port(other, server.port), timeout=0.5)


def test_stopping_ends_the_processes_and_removes_the_data(server: Service) -> None:
    assert all(private.alive(pid) for pid in server.pids)
    private.stop(server)
    assert not any(private.alive(pid) for pid in server.pids)
    assert not Path(server.directory).exists()
    with pytest.raises(handshake.HandshakeError):
        address.ask(server)


def test_a_recycled_process_id_is_left_alone(tmp_path: Path) -> None:
    """The note remembers when the process was born; an id alone is not enough to kill."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        note = tmp_path / "redis-1"
        note.mkdir()
        service = Service("redis", "127.0.0.1", 1, pids=(stranger.pid,), directory=str(note))
        private._write(note, service, note / "data")
        text = (note / "service.json").read_text()
        born = private._birth(stranger.pid)
        (note / "service.json").write_text(text.replace(f'"{born}"', '"another time"'))
        private.stop(service)
        assert stranger.poll() is None
        stranger.communicate(b"\n")


def test_up_prints_the_variables_and_down_stops(tmp_path: Path) -> None:
    require_program("redis-server", "valkey-server")
    environment = {**os.environ, "OUTBOX_SERVICES_HOME": str(tmp_path)}

    def command(*arguments: str) -> str:
        line = [sys.executable, "-m", "tests.services", *arguments]
        return subprocess.run(
            line, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        ).stdout

    port = command("up", "--private", "redis").strip().removesuffix("/0").rpartition(":")[2]
    service = address.at_port("redis", int(port))
    assert address.ask(service)
    command("down")
    wait_for(lambda: not list(tmp_path.iterdir()), message="the note is still there")
    with pytest.raises(handshake.HandshakeError):
        address.ask(service)
