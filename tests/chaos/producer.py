"""The producer: transactions with task calls in them, one after the other, until told to stop.

About a third of them roll back. Each writes what it is about to do and what came of it to a file:
`begin <ids>`, then `committed`, `rolled back` or `unknown` (the database went away during COMMIT).
`python -m tests.chaos.producer FILE SEED RATE`; SIGTERM ends it after the current transaction.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django
from django.db import Error, connection, transaction

from tests.chaos.project import QUEUES, app, note

if TYPE_CHECKING:
    from typing import TextIO

ROLLED_BACK = 0.3
SIZES = (1, 1, 1, 2, 3, 5, 10, 20, 60, 150)
PADDING = "x" * 300


class ChangedMind(Exception):
    """Why a transaction rolls back."""


class Producer:
    """One thread, one connection, one file."""

    def __init__(self, file: TextIO, seed: str, rate: float) -> None:
        self._file = file
        self._random = random.Random(seed)
        self._rate = rate
        self._stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())

    def run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            size = self._random.choice(SIZES)
            self._write(self._transaction(size))
            pause = size / self._rate

    def _transaction(self, size: int) -> str:
        mean_it = self._random.random() >= ROLLED_BACK
        try:
            connection.ensure_connection()
        except Error:
            return "no connection"
        try:
            with transaction.atomic():
                self._call(size)
                if not mean_it:
                    raise ChangedMind
        except ChangedMind:
            return "rolled back"
        except Error:
            connection.close()
            return "unknown"
        return "committed"

    def _call(self, size: int) -> None:
        with app.outbox_bulk():
            ids = [self._send() for _ in range(size)]
            self._write("begin", *ids)
        with connection.cursor() as cursor:
            note(cursor, ids)

    def _send(self) -> str:
        if self._random.random() < 0.8:
            sent: Any = app.send_task("parcel", queue=QUEUES["parcel"])
        else:
            children = self._random.choice((0, 0, 0, 0, 2))
            kwargs = {"children": children, "padding": PADDING}
            sent = app.send_task("run", kwargs=kwargs, queue=QUEUES["run"])
        return str(sent.id)

    def _write(self, *words: str) -> None:
        print(*words, file=self._file, flush=True)


if __name__ == "__main__":
    django.setup()
    with Path(sys.argv[1]).open("a") as file:
        Producer(file, sys.argv[2], float(sys.argv[3])).run()
