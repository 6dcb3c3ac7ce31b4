"""A thread that commits calls all the time, while a test causes faults."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from django.db import Error, connections

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
