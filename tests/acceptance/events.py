"""Events for several destinations at once, and what each destination got, in which order and when.

`Events(stage, destinations)` configures the stage's client and its workers; `listen` reads what
arrives somewhere, `load` commits events and tasks all the time. Listeners acknowledge what they
have noted, so a broker that restarts may give them a message twice: only its first arrival counts.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import quantiles
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections, transaction
from kombu import Connection, Exchange, Queue

from tests import helpers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.acceptance.stage import Stage

DELIVERY = "celery_outbox_delivery"


class Arrival(NamedTuple):
    """One message, as a consumer got it."""

    id: str
    key: str | None
    number: int
    """Counts the events of its producer."""
    at: float


@dataclass
class Listener:
    """What arrived at one place, in a thread that connects again whenever it has to."""

    url: str
    queue: Queue
    transport_options: dict[str, Any] = field(default_factory=dict)
    at_once: int = 200
    """Messages that the broker sends ahead of their acknowledgements."""

    def __post_init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.ready = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)

    def first_arrivals(self) -> dict[str, Arrival]:
        """By id. Repeats of what has arrived already are allowed."""
        found: dict[str, Arrival] = {}
        for each in list(self.arrivals):
            found.setdefault(each.id, each)
        return found

    def out_of_order(self) -> list[tuple[Arrival, Arrival]]:
        """First arrivals that came after a later one with their key."""
        last: dict[str, Arrival] = {}
        found = []
        for each in self.first_arrivals().values():
            if each.key is not None:
                before = last.get(each.key)
                if before is not None and before.number > each.number:
                    found.append((before, each))
                else:
                    last[each.key] = each
        return found

    def start(self) -> None:
        self._thread.start()
        assert self.ready.wait(20), f"nothing can be read at {self.queue.name}"

    def stop(self) -> None:
        self._end.set()
        self._thread.join(20)
        with suppress(Exception), self._connect() as connection:
            bound = self.queue(connection.default_channel)
            bound.delete()
            if self.queue.exchange.name:
                bound.exchange.delete()

    def _connect(self) -> Connection:
        return Connection(
            self.url, transport_options=self.transport_options, connect_timeout=2, heartbeat=4
        )

    def _main(self) -> None:
        while not self._end.wait(0.05):
            with suppress(Exception):
                self._read()

    def _read(self) -> None:
        with (
            self._connect() as connection,
            connection.Consumer(self.queue, callbacks=[self._note], prefetch_count=self.at_once),
        ):
            self.ready.set()
            while not self._end.is_set():
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.2)

    def _note(self, body: Any, message: Any) -> None:
        now = monotonic()
        if "id" in message.headers:
            self.arrivals.append(Arrival(message.headers["id"], None, 0, now))
        else:
            event_id = message.properties["message_id"]
            self.arrivals.append(Arrival(event_id, body["key"], body["number"], now))
        message.ack()


@dataclass
class Load:
    """What was committed, and when, for whom."""

    committed: dict[str, dict[str, float]]
    """By place: id → time of the commit."""
    listeners: Mapping[str, Listener]

    def missing(self, place: str) -> set[str]:
        return set(self.committed[place]) - self.listeners[place].first_arrivals().keys()

    def arrived(self, place: str) -> int:
        return len(self.listeners[place].first_arrivals())

    def waits(self, place: str, since: float = 0.0, until: float = float("inf")) -> list[float]:
        """From commit to arrival, of what was committed in this time."""
        first = self.listeners[place].first_arrivals()
        return [
            first[each].at - at
            for each, at in list(self.committed[place].items())
            if since <= at < until and each in first
        ]

    def longest_wait_after(self, place: str, moment: float) -> float:
        """From this moment, or from a later commit, to the arrival."""
        committed = self.committed[place]
        first = self.listeners[place].first_arrivals().values()
        return max(each.at - max(committed[each.id], moment) for each in first)

    def wait_for_more(self, place: str, count: int, timeout: float = 40) -> None:
        before = self.arrived(place)
        helpers.wait_for(
            lambda: self.arrived(place) >= before + count, timeout, f"nothing arrives at {place}"
        )


class Events:
    """Destinations of one stage, and those who read what arrives there."""

    def __init__(self, stage: Stage, destinations: dict[str, dict[str, Any]]) -> None:
        self.stage = stage
        self.names = list(destinations)
        self.listeners: dict[str, Listener] = {}
        stage.settings["CELERY_OUTBOX_DESTINATIONS"] = destinations
        stage.client.conf.outbox_destinations = destinations
        self._numbers = itertools.count(1)

    def listen(
        self,
        place: str,
        url: str,
        queue: Queue,
        transport_options: Any = None,
        at_once: int = Listener.at_once,
    ) -> Listener:
        listener = Listener(url, queue, transport_options or {}, at_once)
        listener.start()
        self.listeners[place] = listener
        return listener

    def listen_to_parcels(self) -> Listener:
        """What the tasks of the own broker are to a test that looks at their messages only."""
        name = self.stage.parcels
        return self.listen("tasks", self.stage.broker, Queue(name, Exchange(name), name))

    def publish(
        self,
        count: int = 1,
        *,
        to: Sequence[str] = (),
        key: Callable[[int], str | None] = lambda number: None,
        name: str = "order.paid",
        database: str = "default",
    ) -> list[str]:
        """Commit events in one transaction; their ids."""
        alias = self.stage.aliases[database]
        with transaction.atomic(using=alias):
            return [
                self._publish_one(next(self._numbers), to or self.names, key, name, alias)
                for _ in range(count)
            ]

    def rows(self, where: str = "1 = 1") -> int:
        return int(self.stage.sql(f"SELECT count(*) FROM {DELIVERY} WHERE {where}")[0][0])

    def wait_until_empty(self, timeout: float = 40) -> None:
        helpers.wait_for(
            lambda: self.rows() == 0, timeout, lambda: f"{self.rows()} left\n{self.stage.logs()}"
        )

    def dead_letters(self) -> list[tuple[Any, ...]]:
        return self.stage.sql("SELECT destination, task_id FROM celery_outbox_dead_letter")

    @contextmanager
    def load(self, pause: float = 0.02, keys: int = 20) -> Iterator[Load]:
        """Commit an event for all destinations and a parcel every `pause` seconds, in one
        transaction. At the end of the block all have arrived."""
        load = Load({place: {} for place in self.listeners}, self.listeners)
        end = threading.Event()
        alias = self.stage.aliases["default"]

        def produce() -> None:
            while not end.wait(pause):
                with transaction.atomic(using=alias):
                    (event,) = self.publish(key=lambda number: f"key-{number % keys}")
                    (task,) = self.stage.send_parcels(1)
                now = monotonic()
                for place, committed in load.committed.items():
                    committed[task if place == "tasks" else event] = now
            connections.close_all()

        thread = threading.Thread(target=produce, daemon=True)
        thread.start()
        try:
            yield load
            end.set()
            thread.join(30)
            for place in self.listeners:
                helpers.wait_for(lambda: not load.missing(place), 60, lambda: self._lost(load))  # noqa: B023
        finally:
            end.set()
            thread.join(30)

    def close(self) -> None:
        for listener in self.listeners.values():
            listener.stop()

    def _publish_one(
        self,
        number: int,
        to: Sequence[str],
        key: Callable[[int], str | None],
        name: str,
        alias: str,
    ) -> str:
        data = {"key": key(number), "number": number}
        published: str = self.stage.client.outbox.publish(
            name, data, to=list(to), key=key(number), using=alias
        )
        return published

    def _lost(self, load: Load) -> str:
        lost = {place: len(load.missing(place)) for place in self.listeners}
        return f"did not arrive: {lost}\n{self.stage.logs()}"


def slowest_but_few(waits: Sequence[float]) -> float:
    """95 of 100 took no longer than this."""
    return quantiles(waits, n=20)[-1]
