"""Everything that a chaos run needs, started on free ports and stopped by process id.

Private PostgreSQL, RabbitMQ and Redis; a producer; slots for workers, each behind proxies of its
own. `with World(...)` leaves nothing behind, whatever happens inside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import psycopg
import redis
from kombu import Connection

from tests import helpers
from tests.chaos.audit import AUDIT, Audit
from tests.chaos.project import QUEUES
from tests.chaos.workers import WITNESS, Slot, Supervisor
from tests.harness.processes import LocalProcess, clean_environment
from tests.harness.proxy import Proxy
from tests.harness.servers import PrivateServer
from tests.harness.settings import database_settings
from tests.services import programs

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

BATCH = 50
LEASE = 15.0
FLAGS = [
    f"--outbox-batch-size={BATCH}", f"--outbox-stale-timeout={LEASE:g}",
    "--outbox-send-timeout=3", "--outbox-idle-time=0.5", "--outbox-broker-outage-cooldown=1",
    "--outbox-backoff-time=0.5", "--outbox-max-backoff=2", "--outbox-shutdown-timeout=10",
]  # fmt: skip
DATABASE = "chaos"


class World:
    """Servers, producer and workers of one run."""

    def __init__(self, path: Path, seed: int, *, victims: int = 3, rate: float = 100.0) -> None:
        self.path = path
        self.seed = seed
        self.rate = rate
        self.ledger = path / "producer.txt"
        self._stack = ExitStack()
        self._victims = victims
        self._producer: LocalProcess | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start_servers(stack)
            self.audit = stack.enter_context(Audit(self.amqp))
            self.slots = [self._slot(stack, f"worker{n}") for n in range(self._victims)]
            self.witness = self._slot(stack, WITNESS)
            self.start_workers()
            stack.enter_context(Supervisor(self.everybody))
            stack.callback(self.stop_producer)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def everybody(self) -> list[Slot]:
        return [*self.slots, self.witness]

    def start_workers(self) -> None:
        for slot in self.everybody:
            slot.start()

    def wait_until_ready(self, timeout: float = 90) -> None:
        helpers.wait_for(
            lambda: all(slot.ready for slot in self.everybody), timeout, self.tails, pause=0.1
        )

    def tails(self) -> str:
        """The end of every worker's log, for the report of a failure."""
        texts = [
            f"{s.log.name}:\n{s.log.read_text(errors='replace')[-3000:]}" for s in self.everybody
        ]
        return "\n\n".join(["the workers do not get ready", *texts])

    def said_of(self, task_ids: list[str]) -> str:
        """What the logs of all workers, also of earlier ones, say of these tasks."""
        logs = {log: log.read_text(errors="replace") for s in self.everybody for log in s.logs()}
        return "\n".join(
            f"{log.name}: {line}"
            for task_id in task_ids
            for log, text in logs.items()
            for line in text.splitlines()
            if task_id in line
        )

    # -- the producer -----------------------------------------------------------------------------

    def start_producer(self, number: int) -> None:
        command = [sys.executable, "-m", "tests.chaos.producer", str(self.ledger)]
        self._producer = LocalProcess(
            [*command, f"producer {self.seed} {number}", str(self.rate)],
            name="producer",
            cwd=self.path,
            env=self._environment(self.postgres.port, self.rabbit.port),
        )
        self._producer.start()

    def stop_producer(self) -> None:
        process, self._producer = self._producer, None
        if process is None:
            return
        try:
            process.ask_to_stop()
            assert process.wait(30) == 0, process.logs()[-3000:]
        finally:
            process.end()

    # -- looks ------------------------------------------------------------------------------------

    def sql(self, text: str, parameters: Any = None, *, database: str = DATABASE) -> list[Any]:
        """On a connection of its own: the database may have been anything but well."""
        with self.connect(database) as connection:
            cursor = connection.execute(text, parameters)
            return cursor.fetchall() if cursor.description else []

    def connect(self, database: str = DATABASE) -> psycopg.Connection[Any]:
        return psycopg.connect(self._dsn(database), autocommit=True, connect_timeout=5)

    def messages(self) -> int:
        """How many wait in the queues."""
        with self.amqp() as connection:
            ask = connection.default_channel.queue_declare
            return sum(ask(name, passive=True).message_count for name in (AUDIT, "chaos.run"))

    def amqp(self) -> Connection:
        return Connection(self._amqp_url(self.rabbit.port), connect_timeout=5)

    def rabbitmqctl(self, *arguments: str) -> str:
        server: Any = self.rabbit.container._container
        done = subprocess.run(
            [programs.require("rabbitmqctl"), *arguments], env={**os.environ, **server.env},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # -- details ----------------------------------------------------------------------------------

    def _start_servers(self, stack: ExitStack) -> None:
        for name in ("postgres", "rabbitmq", "redis"):
            server = PrivateServer(name, self._home(name))
            stack.callback(server.teardown)
            setattr(self, {"rabbitmq": "rabbit"}.get(name, name), server)
        self.client = redis.Redis(port=self.redis.port, decode_responses=True)
        stack.callback(self.client.close)
        self._prepare_broker()
        self._prepare_database()

    postgres: PrivateServer
    rabbit: PrivateServer
    redis: PrivateServer

    def _home(self, name: str) -> Path:
        home = self.path / name
        home.mkdir()
        return home

    def _prepare_broker(self) -> None:
        """One queue gets a copy of everything."""
        with self.amqp() as connection:
            channel = connection.default_channel
            for queue in QUEUES.values():
                queue(channel).declare()
            channel.queue_bind(AUDIT, QUEUES["run"].exchange.name)

    def _prepare_database(self) -> None:
        self.sql(f"CREATE DATABASE {DATABASE}", database="postgres")
        self.sql(
            "CREATE TABLE chaos_ledger (task_id text PRIMARY KEY,"
            " at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
        self.sql("CREATE TABLE chaos_effect (task_id text NOT NULL)")  # not unique: twice is seen
        subprocess.run(
            [sys.executable, "-m", "django", "migrate", "celery_outbox", "-v0", "--skip-checks"],
            cwd=self.path, env=self._environment(self.postgres.port, self.rabbit.port), check=True,
        )  # fmt: skip

    def _slot(self, stack: ExitStack, name: str) -> Slot:
        broker = stack.enter_context(Proxy("127.0.0.1", self.rabbit.port))
        database = stack.enter_context(Proxy("127.0.0.1", self.postgres.port))
        env = self._environment(database.port, broker.port)
        slot = Slot(name, env, broker, database, self.path, FLAGS, str(self.seed))
        stack.callback(slot.end)
        return slot

    def _environment(self, database_port: int, broker_port: int) -> dict[str, str]:
        database = {
            **database_settings("postgresql", DATABASE, self.postgres.service),
            "PORT": str(database_port),
            "OPTIONS": {"connect_timeout": 5, "application_name": "worker"},
        }
        return clean_environment(
            DJANGO_SETTINGS_MODULE="tests.chaos.project",
            CHAOS_DATABASE=json.dumps(database),
            CHAOS_BROKER=self._amqp_url(self.rabbit.port),
            CHAOS_BROKER_WRITE=self._amqp_url(broker_port),
            CHAOS_REDIS=f"redis://127.0.0.1:{self.redis.port}/0",
        )

    def _amqp_url(self, port: int) -> str:
        return f"amqp://guest:guest@127.0.0.1:{port}//"

    def _dsn(self, database: str) -> str:
        return f"host=127.0.0.1 port={self.postgres.port} user=postgres dbname={database}"
