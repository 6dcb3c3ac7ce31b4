"""A quorum queue that has lost its majority: it takes messages and confirms none of them."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Exchange, Queue

from tests import helpers
from tests.poison.test_silent_queues import assert_it_holds_up_its_own_only
from tests.services import address, private, programs, recipes
from tests.services.handshake import HandshakeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.poison.bench import Bench
    from tests.poison.brokers import Rabbit

pytestmark = pytest.mark.postgresql


@contextmanager
def second_node(rabbit: Rabbit, home: Path) -> Iterator[Callable[[], None]]:
    """Joins the private server's cluster; gives a function that kills it."""
    port, owner = private.free_port(), programs.unprivileged_user("rabbitmq")
    data = private._data_directory(home, owner)
    names = int(rabbit.environment["ERL_EPMD_PORT"])
    environment = {
        **rabbit.environment,
        **recipes._rabbitmq_environment(port, names, private.free_port(), data),
        "HOME": rabbit.environment["HOME"],  # the cookie
    }
    files = ("RABBITMQ_ENABLED_PLUGINS_FILE", "RABBITMQ_CONFIG_FILE", "RABBITMQ_CONF_ENV_FILE")
    environment.update({each: rabbit.environment[each] for each in files})
    process = recipes._spawn([programs.require("rabbitmq-server")], data, owner, environment)
    node = environment["RABBITMQ_NODENAME"]

    def kill() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    try:
        helpers.wait_for(lambda: answers(port), 60, (data / "output.log").read_text)
        for command in (["stop_app"], ["join_cluster", rabbit.node], ["start_app"]):
            rabbit.ctl("-n", node, *command)
        try:
            yield kill
        finally:
            kill()
            rabbit.ctl("forget_cluster_node", node)
    finally:
        kill()
        shutil.rmtree(data, ignore_errors=True)


def answers(port: int) -> bool:
    try:
        return bool(address.ask(address.at_port("rabbitmq", port), timeout=2.0))
    except HandshakeError:
        return False


def test_a_quorum_queue_without_a_majority_holds_up_its_own_messages_only(
    bench_on: Callable[..., Bench], rabbit: Rabbit, tmp_path: Path, record_property: Any
) -> None:
    bench = bench_on(rabbit, send_timeout=1.0, start=False)
    name = bench.name("quorum")
    arguments = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 2}
    queue = Queue(name, Exchange(name), name, queue_arguments=arguments)
    with second_node(rabbit, tmp_path) as kill:
        with rabbit.admin() as connection:
            queue(connection.default_channel).declare()
        kill()
        assert_it_holds_up_its_own_only(bench, lambda: bench.call(queue=queue), record_property)
