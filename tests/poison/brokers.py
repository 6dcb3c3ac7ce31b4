"""Brokers that may be mistreated: a RabbitMQ and a Redis of our own, a directory, this process.

The relay logs in as a user with limited rights. `admin()` is a connection without limits, to
prepare what a poison needs and to look at what has arrived.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from kombu import Connection, Queue

from tests import helpers
from tests.harness.servers import PrivateServer
from tests.services import programs

if TYPE_CHECKING:
    from tests.services import Service

FORBIDDEN = "forbidden"
"""Names that begin so are out of the relay's rights."""
TOPIC = "open-topic"
"""An exchange of which the relay may not write to every topic."""
LARGEST = 1024 * 1024
"""Bytes of a message that the private servers take."""
_HEADROOM = 64 * 1024
ALLOWED = f"^(?!{FORBIDDEN}).*"
# RabbitMQ 3 reads the setting per channel, RabbitMQ 4 from a persistent term.
LIMIT = (
    f"application:set_env(rabbit, max_message_size, {LARGEST}), "
    f"persistent_term:put(max_message_size, {LARGEST})"
)


class Broker:
    """What a bench needs to know of a broker."""

    name: str
    url: str
    options: dict[str, Any]

    def __init__(self, url: str, admin_url: str = "", **options: Any) -> None:
        self.url = url
        self.options = options
        self._admin_url = admin_url or url

    def admin(self) -> Connection:
        return Connection(self._admin_url, transport_options=self.options)

    def copies(self, name: str) -> Counter[str]:
        """How many copies of each task are in the queue; takes them out of it."""
        with self.admin() as connection:
            queue = Queue(name)(connection.default_channel)
            queue.queue_declare()
            found = iter(lambda: queue.get(no_ack=True, accept=[]), None)
            return Counter(message.headers["id"] for message in found)

    def clear(self) -> None:
        """Forget what the last test left."""


class Rabbit(Broker):
    """A private RabbitMQ: the relay's user may not touch what is called forbidden."""

    name = "rabbitmq"
    USER, PASSWORD = "relay", "secret"

    def __init__(self, server: PrivateServer) -> None:
        self.server = server
        at = f"127.0.0.1:{server.port}//"
        super().__init__(f"amqp://{self.USER}:{self.PASSWORD}@{at}", f"amqp://guest:guest@{at}")
        self.environment = _environment(server.service)
        self.node = self.environment["RABBITMQ_NODENAME"]
        self.eval(f"{self._user()}, {LIMIT}.")

    def allow(self, write: str = ALLOWED) -> None:
        self.ctl("set_permissions", self.USER, ALLOWED, write, ".*")

    def limit(self) -> None:
        """To be said again after a restart."""
        self.eval(f"{LIMIT}.")

    def _user(self) -> str:
        """In one go: every rabbitmqctl takes more than a second."""
        who, rights = f'<<"{self.USER}">>, <<"/">>', f'<<"{ALLOWED}">>'
        return (
            'B = rabbit_auth_backend_internal, A = <<"tests">>, '
            f'B:add_user(<<"{self.USER}">>, <<"{self.PASSWORD}">>, A), '
            f'B:set_permissions({who}, {rights}, {rights}, <<".*">>, A), '
            f'B:set_topic_permissions({who}, <<"{TOPIC}">>, {rights}, <<".*">>, A)'
        )

    def ctl(self, *arguments: str) -> str:
        done = subprocess.run(
            [programs.require("rabbitmqctl"), *arguments],
            env={**os.environ, **self.environment},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def copies(self, name: str) -> Counter[str]:
        """As above, without a round trip per message."""
        found: Counter[str] = Counter()
        with self.admin() as connection:
            channel = connection.default_channel
            count = Queue(name)(channel).queue_declare().message_count
            channel.basic_consume(
                name, no_ack=True, callback=lambda each: found.update([each.headers["id"]])
            )
            while found.total() < count:
                connection.drain_events(timeout=10)
        return found

    def eval(self, code: str) -> str:
        return self.ctl("eval", code)


class RedisServer(Broker):
    """A private Redis: the relay's user has rights for open* and kombu's own keys only."""

    name = "redis"

    def __init__(self, server: PrivateServer) -> None:
        self.server = server
        at = f"127.0.0.1:{server.port}/0"
        super().__init__(f"redis://relay:secret@{at}", f"redis://{at}")
        self.client: Any = redis.Redis(port=server.port, decode_responses=True)
        self.clear()

    def clear(self) -> None:
        self.client.flushall()
        rights = ("~open*", "~_kombu*", "&/0.open*", "+@all")  # the channel is kombu's, for fanouts
        self.client.execute_command("ACL", "SETUSER", "relay", "reset", "on", ">secret", *rights)
        self.client.config_set("proto-max-bulk-len", LARGEST + _HEADROOM)

    def save(self) -> None:
        """Have a snapshot written, and wait until that has worked or failed."""
        self.client.bgsave()
        helpers.wait_for(lambda: not self._persistence("rdb_bgsave_in_progress"))

    def _persistence(self, field: str) -> Any:
        return self.client.info("persistence")[field]


class Files(Broker):
    """kombu's transport on a directory."""

    name = "filesystem"

    def __init__(self, folder: Path) -> None:
        folders = ("data_folder_in", "data_folder_out", "control_folder")
        super().__init__("filesystem://", **dict.fromkeys(folders, str(folder)))


class Memory(Broker):
    """kombu's transport inside this process."""

    name = "memory"

    def __init__(self) -> None:
        super().__init__("memory://")


def private_server(kind: str, home: Path) -> PrivateServer:
    if kind == "rabbitmq":
        helpers.require_program("rabbitmqctl")
    return PrivateServer(kind, home)


def _environment(service: Service) -> dict[str, str]:
    """The node's name, its ports and its cookie's home, for rabbitmqctl."""
    assert json.loads((Path(service.directory) / "service.json").read_text())["data"]
    text = Path(f"/proc/{service.pids[-1]}/environ").read_bytes().decode(errors="replace")
    pairs = dict(each.split("=", 1) for each in text.split("\0") if "=" in each)
    return {k: v for k, v in pairs.items() if k.startswith(("RABBITMQ_", "ERL_", "HOME"))}
