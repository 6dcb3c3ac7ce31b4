"""The stage of an acceptance test: a database, a broker, workers, and two ledgers to compare.

`enqueue` commits tasks to the database and returns their ids; `ran` and `arrived` say what the
workers executed and what reached a queue without a consumer. Every stage has its own queues, keys
and node names, so that the servers may be shared.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import redis
from celery import Celery
from django.db import connections, transaction
from kombu import Connection, Exchange, Queue

from django_integration import OutboxCelery
from django_integration.schema import TABLES
from tests import helpers
from tests.harness.processes import LocalProcess, clean_environment
from tests.harness.workers import LocalWorkerContainer, Worker

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

APP = "tests.acceptance.project.app"
CONFIGURED = ("broker_url", "task_default_queue", "task_ignore_result", "broker_transport_options")
# The heartbeat stays: without a timer Celery's event loop notices a signal only after ten seconds.
QUIET = ("--without-gossip", "--without-mingle")


@dataclass
class Stage:
    """Where one test plays. `aliases`: this process's database aliases by the workers' names."""

    path: Path
    broker: str
    aliases: dict[str, str]
    ledger: str
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prefix = f"outbox-acceptance-{uuid.uuid4().hex[:8]}"
        self.queue = f"{self.prefix}.tasks"
        self.parcels = f"{self.prefix}.parcels"
        self.redis = redis.Redis.from_url(self.ledger, decode_responses=True)
        self.client = self.new_client()
        for table in TABLES:
            for alias in self.aliases.values():
                self.sql(f"DELETE FROM {table}", alias=alias)

    # -- enqueue ----------------------------------------------------------------------------------

    def new_client(self) -> Any:
        """An app like the workers' one, for this process."""
        client = OutboxCelery("client", set_as_current=False)
        client.conf.update(
            broker_url=self.broker,
            task_default_queue=self.queue,
            task_ignore_result=True,
            broker_transport_options=self._transport_options(),
        )
        return client

    def enqueue(
        self, count: int = 1, task: str = "record", *, database: str = "default", **options: Any
    ) -> list[str]:
        """Commit `count` calls in one transaction; their ids."""
        alias = self.aliases[database]
        options = {"outbox_using": alias, **options}
        with transaction.atomic(using=alias), self.client.outbox_bulk():
            return [self.client.send_task(task, **options).id for _ in range(count)]

    def send_parcels(self, count: int = 1, **options: Any) -> list[str]:
        """Commit calls whose messages stay in a queue without a consumer."""
        return self.enqueue(count, queue=self.parcels, **options)

    def send_directly(self, task: str = "record", **options: Any) -> str:
        """Publish without the outbox, as plain Celery would."""
        plain = Celery("plain", set_as_current=False)
        plain.conf.update({key: self.client.conf[key] for key in CONFIGURED})
        with plain:
            task_id: str = plain.send_task(task, **options).id
            return task_id

    # -- the ledgers ------------------------------------------------------------------------------

    def ran(self) -> list[str]:
        """Ids of the tasks that ran, once per run."""
        return [line.split(" ")[0] for line in self.redis.lrange(f"{self.prefix}:ran", 0, -1)]

    def ran_names(self) -> list[str]:
        lines = self.redis.lrange(f"{self.prefix}:ran", 0, -1)
        return [line.partition(" ")[2] for line in lines]

    def wait_until_ran(self, ids: list[str], timeout: float = 40) -> None:
        """Wait until each of them has run, and see that none of them ran twice."""
        helpers.wait_for(
            lambda: set(ids) <= set(self.ran()),
            timeout,
            lambda: f"{len(set(ids) - set(self.ran()))} of {len(ids)} did not run\n{self.logs()}",
        )
        assert self.twice(self.ran()) == {}

    def wait_until_nearly_all_ran(self, ids: list[str], missing: int) -> None:
        """Wait until at most `missing` of the tasks have not run."""
        helpers.wait_for(lambda: len(self.ran()) >= len(ids) - missing, 60, self.logs)

    def wait_until_empty(self, timeout: float = 40) -> None:
        """Wait until no row is left."""
        helpers.wait_for(
            lambda: self.rows() == 0, timeout, lambda: f"{self.rows()} rows left\n{self.logs()}"
        )

    def arrived(self) -> list[str]:
        """Ids of the parcels that reached the broker, taken out of their queue."""
        with Connection(self.broker, transport_options=self._transport_options()) as connection:
            count = self._waiting_parcels(connection)
            found: list[str] = []
            with connection.Consumer(
                Queue(self.parcels, Exchange(self.parcels), self.parcels),
                callbacks=[lambda body, message: found.append(message.headers["id"])],
                no_ack=True,
            ):
                while len(found) < count:
                    connection.drain_events(timeout=10)
            return found

    def holders(self) -> list[str]:
        """The relays that hold rows."""
        found = self.sql("SELECT DISTINCT claimed_by FROM celery_outbox")
        return [relay for (relay,) in found if relay is not None]

    def consumers(self) -> int:
        """How many workers consume the queue. RabbitMQ only."""
        with Connection(self.broker) as connection:
            declared = connection.default_channel.queue_declare(self.queue, passive=True)
            return int(declared.consumer_count)

    def twice(self, ids: list[str]) -> dict[str, int]:
        return {each: count for each, count in Counter(ids).items() if count > 1}

    def rows(self, where: str = "1 = 1", *, database: str = "default") -> int:
        sql = f"SELECT count(*) FROM celery_outbox WHERE {where}"
        return int(self.sql(sql, alias=self.aliases[database])[0][0])

    def dead_letters(self) -> list[tuple[Any, ...]]:
        return self.sql("SELECT task_id, failure_reason FROM celery_outbox_dead_letter")

    def sql(self, text: str, *, alias: str | None = None) -> list[tuple[Any, ...]]:
        with connections[alias or self.aliases["default"]].cursor() as cursor:
            cursor.execute(text)
            return list(cursor.fetchall()) if cursor.description else []

    def database_settings(self, database: str = "default") -> dict[str, Any]:
        """How a worker connects to it."""
        return _settings_of(self.aliases[database])

    # -- workers ----------------------------------------------------------------------------------

    def worker(self, *flags: str, relay: bool = True, pool: str = "prefork", **more: Any) -> Worker:
        """A running worker with a relay in it."""
        return self.prepare(*flags, relay=relay, pool=pool, **more).start()

    def prepare(
        self,
        *flags: str,
        relay: bool = True,
        pool: str = "prefork",
        concurrency: int = 2,
        app: str = APP,
        settings: Mapping[str, Any] | None = None,
        **environment: str,
    ) -> Worker:
        """A worker that is not started yet."""
        name = f"{self.prefix}-{len(self.workers)}"
        command = [
            sys.executable, "-m", "celery", "-A", app, "worker", "-l", "INFO", "-n", f"{name}@%h",
            "-P", pool, "-c", str(concurrency), *QUIET, *(["--outbox-relay"] * relay), *flags,
        ]  # fmt: skip
        env = {**self._environment(settings), **environment}
        process = LocalProcess(command, name=name, cwd=self.path, env=env)
        worker = Worker(LocalWorkerContainer(process), self.client)
        self.workers.append(worker)
        return worker

    def behind(self, port: int) -> dict[str, str]:
        """Settings with which the relay publishes through a proxy; the worker consumes directly."""
        address = helpers.require_service("rabbitmq").address
        through = self.broker.replace(address, f"127.0.0.1:{port}")
        return {"CELERY_BROKER_READ_URL": self.broker, "CELERY_BROKER_WRITE_URL": through}

    def stop(self, worker: Worker, signal: str = "SIGTERM") -> int:
        """Stop it in the middle of its work; the exit code."""
        worker.kill(signal)
        self.send_directly()  # Celery's event loop looks at its signals when something happens
        return worker.wait()

    def refused(self, *flags: str, **more: Any) -> str:
        """Start a worker that must not start; what it said. Checks that it said one clear line."""
        worker = self.prepare(*flags, **more)
        worker.process.start()
        assert worker.wait(60) != 0
        assert "Traceback" not in worker.logs()
        return worker.logs()

    def celery(self, *arguments: str, app: str = APP) -> str:
        """The output of a `celery` command of the project."""
        after = ["-A", app] if arguments[0] == "multi" else []
        before = [] if after else ["-A", app]
        return self.python("-m", "celery", *before, *arguments, *after)

    def python(self, *arguments: str, **environment: str) -> str:
        """The output of a Python program in the project's environment."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.path, env={**self._environment(), **environment}, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, worker: Worker, command: str, **arguments: Any) -> Any:
        """The answer of one worker to a remote control command."""
        for answer in self.client.control.broadcast(
            command, arguments=arguments, destination=[worker.node], reply=True, timeout=10, limit=1
        ):
            return answer[worker.node]
        raise AssertionError(f"no answer:\n{worker.logs()}")

    def tell(self, worker: Worker, command: str, **arguments: Any) -> None:
        """A remote control command to one worker, whose answer may not come through."""
        self.client.control.broadcast(command, arguments=arguments, destination=[worker.node])

    def counters(self, worker: Worker) -> dict[str, int]:
        """What the relay in this worker has counted."""
        (relay,) = self.ask(worker, "outbox")["relays"]
        return {"published": 0, **relay["counters"]}

    def control(self, worker: Worker, *arguments: str) -> Any:
        """The answer of one worker to an inspect or control command."""
        output = self.celery(arguments[0], "-j", "-t", "10", "-d", worker.node, *arguments[1:])
        answer = json.loads(output)
        return (answer[0] if isinstance(answer, list) else answer)[worker.node]

    def logs(self) -> str:
        return "\n".join(worker.logs() for worker in self.workers)

    def close(self) -> None:
        started = [worker for worker in self.workers if worker.process.process is not None]
        for worker in started:
            worker.process.end()
        self._forget_broker()
        for key in self.redis.scan_iter(f"{self.prefix}*", count=1000):
            self.redis.delete(key)
        self.redis.close()
        self.client.close()
        for alias in self.aliases.values():
            connections[alias].close()

    # -- details ----------------------------------------------------------------------------------

    def _waiting_parcels(self, connection: Any) -> int:
        channel = connection.default_channel
        if hasattr(
            channel, "_size"
        ):  # on Redis, kombu forgets the prefix when it looks for a queue
            return int(channel._size(self.parcels))
        queue = Queue(self.parcels, Exchange(self.parcels), self.parcels)
        return int(queue(channel).declare() and queue(channel).queue_declare().message_count)

    def _transport_options(self) -> dict[str, Any]:
        # On Redis everything of this stage goes under one prefix; RabbitMQ does not look.
        return {"global_keyprefix": f"{self.prefix}:"} if "redis:" in self.broker else {}

    def _environment(self, more: Mapping[str, Any] | None = None) -> dict[str, str]:
        databases = {name: _settings_of(alias) for name, alias in self.aliases.items()}
        settings = {
            "CELERY_BROKER_URL": self.broker,
            "CELERY_BROKER_TRANSPORT_OPTIONS": self._transport_options(),
            "CELERY_TASK_DEFAULT_QUEUE": self.queue,
            "CELERY_TASK_IGNORE_RESULT": True,
            **self.settings,
            **(more or {}),
        }
        return clean_environment(
            ACCEPTANCE_DATABASES=json.dumps(databases),
            ACCEPTANCE_SETTINGS=json.dumps(settings),
            ACCEPTANCE_LEDGER=f"{self.ledger} {self.prefix}",
            **self.environment,
        )

    def _forget_broker(self) -> None:
        with (
            suppress(Exception),
            Connection(
                self.broker, transport_options=self._transport_options(), connect_timeout=2
            ) as connection,
        ):
            channel = connection.default_channel
            channel.queue_delete(self.queue)
            channel.queue_delete(self.parcels)
            channel.exchange_delete(self.queue)
            channel.exchange_delete(self.parcels)


def _settings_of(alias: str) -> dict[str, Any]:
    wanted = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
    return {key: connections.settings[alias][key] for key in wanted}
