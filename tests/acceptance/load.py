"""Threads that commit calls all the time, and see when they arrive, while a test causes faults."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from django.db import Error, connections
from kombu import Connection, Exchange, Queue

from tests import helpers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.stage import Stage


@contextmanager
def steady_load(stage: Stage) -> Iterator[list[str]]:
    """Commit parcels all the time, in a thread; calls that fail with the database do not count."""
    committed: list[str] = []
    end = threading.Event()

    def load() -> None:
        while not end.wait(0.02):
            with suppress(Error):
                committed.extend(stage.send_parcels(5))
            connections.close_all()

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    try:
        yield committed
    finally:
        end.set()
        thread.join(30)


@dataclass
class Traffic:
    """When each parcel was committed, and when it arrived, perhaps more than once."""

    committed: dict[str, float] = field(default_factory=dict)
    arrived: list[tuple[str, float]] = field(default_factory=list)

    def wait_for_more(self, count: int) -> None:
        """Wait until that many more parcels have arrived."""
        before = len(self.arrived)
        helpers.wait_for(lambda: len(self.arrived) >= before + count, 40, "nothing arrives")

    def missing(self) -> set[str]:
        return set(self.committed) - {task_id for task_id, _ in list(self.arrived)}

    def twice(self) -> set[str]:
        counts = Counter(task_id for task_id, _ in self.arrived)
        return {task_id for task_id, count in counts.items() if count > 1}

    def longest_wait(self) -> float:
        """From the commit of a parcel to its first arrival."""
        first: dict[str, float] = {}
        for task_id, at in self.arrived:
            first.setdefault(task_id, at)
        return max(first[task_id] - at for task_id, at in self.committed.items())


@contextmanager
def watched_load(stage: Stage, pause: float = 0.02) -> Iterator[Traffic]:
    """Commit a parcel every `pause` seconds. At the end of the block all have arrived."""
    traffic, end, done = Traffic(), threading.Event(), threading.Event()

    def produce() -> None:
        while not end.wait(pause):
            (task_id,) = stage.send_parcels(1)
            traffic.committed[task_id] = monotonic()
        connections.close_all()

    def consume() -> None:
        def note(_: Any, message: Any) -> None:
            traffic.arrived.append((message.headers["id"], monotonic()))

        queue = Queue(stage.parcels, Exchange(stage.parcels), stage.parcels)
        with (
            Connection(stage.broker) as connection,
            connection.Consumer(queue, callbacks=[note], no_ack=True),
        ):
            while not done.is_set():
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.2)

    threads = [threading.Thread(target=each, daemon=True) for each in (produce, consume)]
    for thread in threads:
        thread.start()
    try:
        yield traffic
        end.set()
        threads[0].join(30)
        helpers.wait_for(lambda: not traffic.missing(), 40, lambda: _lost(stage, traffic))
    finally:
        end.set()
        done.set()
        threads[1].join(30)


def _lost(stage: Stage, traffic: Traffic) -> str:
    return f"{len(traffic.missing())} parcels did not arrive\n{stage.logs()}"
