"""Children of the worker's pool do not damage the connections that the relay has borrowed."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Any

import billiard
import pytest
from celery import Celery

from celery_outbox_steps.publishers import pool, publisher_for
from tests import helpers
from tests.integration.publishers.conftest import Broker, task_message
from tests.services.private import free_port

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from tests.integration.publishers.conftest import PrivateRabbit

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
FORKS = 100


def fork_a_child() -> None:
    """As the worker's pool does: billiard's after-fork clean-up runs, kombu's with it."""
    child = billiard.get_context("fork").Process(target=time.sleep, args=(0,))
    child.start()
    child.join()


def local_port(broker: Broker) -> int:
    """Of the one pooled connection: it changes when the connection is lost."""
    with broker.app.producer_pool.connections.acquire(block=True, timeout=5) as connection:
        return int(connection.connection.transport.sock.getsockname()[1])


def publish_between_forks(broker: Broker, queue: Any, count: int) -> tuple[list[Any], set[int]]:
    errors, ports = [], set()
    for _ in range(count):
        errors += [error for error in broker.publish([task_message(queue.name)]) if error]
        ports.add(local_port(broker))
        fork_a_child()
    return errors, ports


@pytest.mark.rabbitmq
def test_a_hundred_forks_on_one_connection(broker: Broker) -> None:
    queue = broker.queue()
    errors, ports = publish_between_forks(broker, queue, FORKS)
    assert errors == []
    assert len(ports) == 1
    assert len(broker.arrived(queue, FORKS)) == FORKS


@pytest.mark.rabbitmq
def test_without_the_shield_a_fork_ends_the_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "shield", lambda connection: None)
    queue = broker.queue()
    _, ports = publish_between_forks(broker, queue, 5)
    assert len(ports) > 1


@pytest.mark.rabbitmq
def test_forks_in_mid_batch(broker: Broker) -> None:
    """The barrier keeps forks out of a batch; where it gives up, the shield still protects."""
    queue = broker.queue()
    messages = [task_message(queue.name) for _ in range(300)]
    before = broker.publish(messages[:1])
    port = local_port(broker)
    receipts = broker.publisher.publish(messages, 10)
    first = next(iter(receipts))
    fork_a_child()
    errors = [first.error, *(error for _, error in receipts)]
    assert [*before, *errors] == [None] * 301
    assert local_port(broker) == port


@pytest.mark.rabbitmq
def test_forks_over_tls(tls_url: str, tls_options: dict[str, Any]) -> None:
    broker = Broker(tls_url, broker_use_ssl=tls_options)
    name = broker.prefix
    from kombu import Queue

    queue = Queue(name, auto_delete=False, durable=False)
    errors, ports = [], set()
    for _ in range(20):
        messages = [task_message(name, declare=(queue,)) for _ in range(50)]
        errors += [error for error in broker.publish(messages) if error]
        ports.add(local_port(broker))
        fork_a_child()
    assert errors == []
    assert len(ports) == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    files = ["-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem")]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    openssl = helpers.require_program("openssl")
    subprocess.run([openssl, *command[1:], *files, *names], check=True, capture_output=True)
    for file in directory.iterdir():
        file.chmod(0o644)
    return directory


@pytest.fixture(scope="module")
def tls_options(certificate: Path) -> dict[str, Any]:
    return {"ca_certs": str(certificate / "cert.pem"), "server_hostname": "127.0.0.1"}


@pytest.fixture(scope="module")
def tls_url(private_rabbit: PrivateRabbit, certificate: Path) -> str:
    port = free_port()
    # The files' content, for the server runs as another user who can't read our directory.
    cert, key = (
        f"public_key:pem_decode(list_to_binary({list((certificate / name).read_bytes())}))"
        for name in ("cert.pem", "key.pem")
    )
    private_rabbit.eval(
        f"[{{'Certificate', Cert, _}}] = {cert}, [{{Kind, Key, _}}] = {key}, "
        "{ok, _} = application:ensure_all_started(ssl), "
        "Options = [{cert, Cert}, {key, {Kind, Key}}], "
        f"rabbit_networking:start_ssl_listener({port}, Options, 2)."
    )
    return f"amqp://guest:guest@127.0.0.1:{port}//"


@pytest.mark.redis
def test_a_hundred_forks_with_redis(redis_url: str, redis_client: redis.Redis) -> None:
    app = Celery("forks", broker=redis_url, set_as_current=False)
    publisher = publisher_for(app)
    for _ in range(FORKS):
        assert [error for _, error in publisher.publish([task_message("q")], 5)] == [None]
        fork_a_child()
    assert redis_client.llen("q") == FORKS
