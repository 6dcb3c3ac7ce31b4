"""A relay as a worker runs it, on a real database and a real broker, and all that it settled."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from django.db import connection, transaction
from kombu import Exchange, Queue, pools

from celery_outbox_steps.messages import Deferred, Retry
from celery_outbox_steps.observe.recorders import recorders_for
from celery_outbox_steps.settings import RelayConfig
from celery_outbox_steps.worker.service import RelayService
from django_integration import OutboxCelery
from django_integration.store import DjangoStore
from tests import helpers
from tests.harness.relays import RunningRelay
from tests.poison.brokers import TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_outbox_steps.messages import Outcome
    from tests.poison.brokers import Broker

QUICK: dict[str, Any] = {
    "batch_size": 50, "idle_time": 0.05, "backoff_time": 0.05, "max_backoff": 0.1,
    "max_retries": 3, "send_timeout": 3.0, "broker_outage_cooldown": 0.2,
}  # fmt: skip
PATIENCE = 20.0


class WatchedStore(DjangoStore):
    """Keeps what was settled, for the test to look at."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self.settled: list[Outcome] = []

    def settle(self, outcomes: Sequence[Outcome], relay_id: str) -> int:
        fenced = super().settle(outcomes, relay_id)
        self.settled.extend(outcomes)
        return fenced


class Bench(RunningRelay):
    """One relay, one queue for good messages, and a way to make bad ones."""

    def __init__(self, broker: Broker, conf: dict[str, Any] | None = None, **config: Any) -> None:
        self.broker = broker
        self.prefix = f"open-{uuid4().hex[:8]}"
        self.app = OutboxCelery("poison", broker=broker.url, set_as_current=False)
        self.app.conf.task_default_queue = self.queue = self.name("good")
        self.app.conf.broker_transport_options = broker.options
        self.app.conf.update(conf or {})
        second = self.name("good-topic")
        self._behind_topic = Queue(second, Exchange(TOPIC, "topic"), routing_key=second)
        self.store = WatchedStore("default")
        self.service = RelayService(
            self.app, self.store, RelayConfig(**{**QUICK, **config}), recorders_for(self.app)
        )
        self.kept = ExitStack()
        """What has to live as long as the bench."""

    def stop(self) -> None:
        super().stop()
        self.app.close()
        self.kept.close()
        pools.reset()

    # -- messages ---------------------------------------------------------------------------------

    def name(self, suffix: str) -> str:
        """A name of this bench's own, within the relay's rights."""
        return f"{self.prefix}.{suffix}"

    def call(self, name: str = "poison", **options: Any) -> str:
        task_id: str = self.app.send_task(name, (1, "two"), **options).id
        return task_id

    def good(self, count: int = 1) -> list[str]:
        """Every second one through an exchange: publishers treat these two ways differently."""
        ways: list[dict[str, Any]] = [{}, {"queue": self._behind_topic}]
        with transaction.atomic():
            return [self.call("good", **ways[number % 2]) for number in range(count)]

    def edited(self, change: Callable[[dict[str, Any]], Any]) -> str:
        """A row as an older release or a hostile writer could have left it."""
        with transaction.atomic():
            task_id = self.call()
            ((text,),) = self.sql("SELECT options FROM celery_outbox WHERE task_id = %s", task_id)
            options = json.loads(text)
            change(options)
            return self._rewritten(task_id, json.dumps(options))

    def raw(self, options: str) -> str:
        """A row whose options are this text."""
        with transaction.atomic():
            return self._rewritten(self.call(), options)

    def _rewritten(self, task_id: str, options: str) -> str:
        update = "UPDATE celery_outbox SET options = %s WHERE task_id = %s"
        self.sql(update, options, task_id)
        return task_id

    # -- looks ------------------------------------------------------------------------------------

    def sql(self, text: str, *parameters: Any) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(text, parameters)
            return list(cursor.fetchall()) if cursor.description else []

    def waiting(self) -> int:
        return int(self.sql("SELECT count(*) FROM celery_outbox")[0][0])

    def dead(self) -> dict[str, str]:
        """Dead letters: their ids and why."""
        return dict(self.sql("SELECT task_id, failure_reason FROM celery_outbox_dead_letter"))

    def settled(self, *kinds: type) -> Counter[str]:
        """How often each task had such an outcome."""
        found = [each for each in list(self.store.settled) if isinstance(each, kinds)]
        return Counter(each.message.task_id for each in found)

    def copies(self) -> Counter[str]:
        """Of what has arrived; takes it out of the queues."""
        return self.broker.copies(self.queue) + self.broker.copies(self._behind_topic.name)

    def wait_until_empty(self, timeout: float = PATIENCE) -> None:
        helpers.wait_for(lambda: not self.waiting(), timeout, self.report)

    def report(self) -> str:
        retries = self.sql("SELECT retries, last_error, count(*) FROM celery_outbox GROUP BY 1, 2")
        counts = Counter(type(each).__name__ for each in self.store.settled)
        return f"waiting {self.waiting()}, dead {len(self.dead())}, {counts}, {retries}"

    def assert_no_retry_spent(self, ids: Sequence[str]) -> None:
        retried, dead = set(self.settled(Retry)) & set(ids), set(self.dead()) & set(ids)
        assert not retried, f"{len(retried)} of {len(ids)} spent a retry"
        assert not dead, f"{len(dead)} of {len(ids)} are dead"

    def assert_arrived(self, ids: Sequence[str], most: int = 2) -> int:
        """Each of them, at most `most` copies, and nothing else. Returns the extra copies."""
        copies = self.copies()
        assert set(copies) == set(ids), f"{len(set(ids) - set(copies))} of {len(ids)} are missing"
        assert max(copies.values(), default=0) <= most, copies.most_common(3)
        return copies.total() - len(ids)

    @property
    def deferred(self) -> int:
        return self.settled(Deferred).total()
