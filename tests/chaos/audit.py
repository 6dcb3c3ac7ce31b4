"""What reached the broker, and when: a queue that gets a copy of every message, read all the time.

The reader takes messages without acknowledging them, which is exact as long as its own connection
lasts: code that stops the broker pauses the reader first.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kombu import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kombu import Connection
    from typing_extensions import Self

AUDIT = "chaos.audit"


class Audit:
    """Arrivals by task id, in a thread that runs while this is entered."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self.arrivals: dict[str, list[float]] = defaultdict(list)
        self.to_run: set[str] = set()
        """Ids of messages that a worker has to run."""
        self.count = 0
        self.error: Exception | None = None
        self._connect = connect
        self._wanted = threading.Event()
        self._idle = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def __enter__(self) -> Self:
        self._wanted.set()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._wanted.set()
        self._thread.join(10)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While this block runs the reader has no connection."""
        self._wanted.clear()
        assert self._idle.wait(30), f"the reader does not pause: {self.error}"
        try:
            yield
        finally:
            self._wanted.set()

    def _run(self) -> None:
        while not self._end.is_set():
            self._idle.set()
            self._wanted.wait()
            self._idle.clear()
            try:
                self._read()
            except Exception as exc:
                self.error = exc

    def _read(self) -> None:
        queue = Queue(AUDIT, no_declare=True)
        with (
            self._connect() as connection,
            connection.Consumer(queue, callbacks=[self._note], no_ack=True),
        ):
            while self._wanted.is_set() and not self._end.is_set():
                try:
                    connection.drain_events(timeout=0.1)
                except TimeoutError:
                    continue

    def _note(self, body: Any, message: Any) -> None:
        if message.headers["retries"]:
            return  # sent by a worker, not by the outbox
        task_id = message.headers["id"]
        self.arrivals[task_id].append(time.time())
        if message.headers["task"] == "run":
            self.to_run.add(task_id)
        self.count += 1
