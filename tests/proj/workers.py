"""A real worker in this process, and something that publishes what is stored meanwhile."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery.contrib.testing.app import setup_default_app
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging
from celery.worker import state
from django.db import connections

from tests.helpers import wait_for
from tests.proj.relaying import publish_all, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def running(app: Any) -> Iterator[None]:
    """A worker for the app while the block runs."""
    app.conf.broker_transport_options = {"polling_interval": 0.02}
    with (
        _logging_untouched(),
        setup_default_app(app),
        start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=15),
    ):
        try:
            yield
        finally:
            state.should_terminate = 0
            _nudge(app)


@contextmanager
def _logging_untouched() -> Iterator[None]:
    """A worker configures the root logger permanently, unless `setup_logging` has a receiver."""

    def leave_it(**_: Any) -> None:
        pass

    setup_logging.connect(leave_it)
    try:
        yield
    finally:
        setup_logging.disconnect(leave_it)


def _nudge(app: Any) -> None:
    """A worker looks up from its queue when a message arrives, or after two seconds; twice."""
    with app.connection_for_write() as connection:
        for _ in range(2):
            connection.Producer().publish({}, routing_key=app.conf.task_default_queue)


def relay_until(app: Any, condition: Callable[[], Any], timeout: float = 15) -> Any:
    """Publish what is stored, again and again, until the condition holds."""

    def step() -> Any:
        if rows():
            publish_all(app, datetime.now(timezone.utc))
        return condition()

    return wait_for(step, timeout=timeout)


@contextmanager
def relaying(app: Any) -> Iterator[None]:
    """Publish in the background while this thread is busy, say with waiting for a result."""
    done = threading.Event()

    def work() -> None:
        try:
            while not done.wait(0.02):
                publish_all(app, datetime.now(timezone.utc))
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
