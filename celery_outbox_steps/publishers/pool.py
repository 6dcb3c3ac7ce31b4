"""Producers are borrowed from the pool of the app or a destination, for one batch and no longer.

There is one attempt to connect per configured broker, within the batch's deadline. A connection
that failed is closed before it is returned, so that the next user reconnects. A forked child closes
the sockets that it inherited.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from kombu.exceptions import LimitExceeded

from celery_outbox_steps.errors import ConfirmTimeout, Interrupted, Outage, describe
from celery_outbox_steps.upstream.kombu import close_inherited_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Deadline:
    """The time by which a batch must have ended."""

    def __init__(self, seconds: float) -> None:
        self._end = monotonic() + seconds

    def remaining(self) -> float:
        """The remaining seconds, but never 0: as a timeout, 0 would mean "do not wait"."""
        return max(0.001, self._end - monotonic())

    def passed(self) -> bool:
        return monotonic() >= self._end

    def refuse_if_passed(self) -> None:
        """Called before each write: the rows may belong to another relay after the deadline."""
        if self.passed():
            raise ConfirmTimeout("the broker took too long to accept the batch (send_timeout)")


@contextmanager
def pooled_producer(
    app: Any, deadline: Deadline, prepare: Callable[[Any], None] | None = None
) -> Iterator[Any]:
    """A connected producer. Raises `Outage` if none is available.

    If the block raises, the connection is closed before it is returned to the pool. The exception
    is raised as `Interrupted`, unless it is an `Outage` already.
    """
    connection = _acquire(app, deadline)
    try:
        connect(connection, deadline, prepare)
        shield(connection)
        yield app.producer_pool.Producer(connection, auto_declare=False)
    except BaseException as exc:
        discard(connection)
        if isinstance(exc, Outage) or not isinstance(exc, Exception):
            raise
        raise Interrupted(describe(exc)) from exc
    finally:
        with suppress(Exception):  # the broker's answers stay valid, whatever happens here
            connection.release()


def discard(connection: Any) -> None:
    """Close without AMQP's closing handshake: the broker may not answer it."""
    with suppress(Exception):
        connection.collect(socket_timeout=0.1)


def _acquire(app: Any, deadline: Deadline) -> Any:
    # The producer pool would wait for a connection without a limit, so acquire that directly.
    try:
        return app.producer_pool.connections.acquire(block=True, timeout=deadline.remaining())
    except LimitExceeded as exc:
        raise Outage(
            "every connection of the app's pool is in use; raise broker_pool_limit"
        ) from exc
    except Exception as exc:  # such as a closed pool: not caused by a message
        raise Outage(describe(exc)) from exc


def connect(
    connection: Any, deadline: Deadline, prepare: Callable[[Any], None] | None = None
) -> None:
    """One attempt per configured broker. Any error is an `Outage`, because no message was sent yet:
    even a TypeError, which is a wrong transport option.
    """
    configured_timeout = connection.connect_timeout
    try:
        if prepare is not None:
            prepare(connection)
        if connection.connected:
            return
        remaining = deadline.remaining()
        connection.connect_timeout = min(configured_timeout or remaining, remaining)
        connection.ensure_connection(
            max_retries=max(0, len(connection.alt or ()) - 1),
            interval_start=0,
            interval_step=0,
            timeout=deadline.remaining(),
            reraise_as_library_errors=False,
        )
    except Exception as exc:
        raise Outage(describe(exc)) from exc
    finally:
        connection.connect_timeout = configured_timeout


_shielded: WeakSet[Any] = WeakSet()


shield = _shielded.add
"""Make forked children close their copy of a kombu connection, so that the parent's stays alive."""


def _close_inherited_sockets() -> None:
    for connection in list(_shielded):
        with suppress(Exception):
            close_inherited_socket(connection)
    _shielded.clear()


os.register_at_fork(after_in_child=_close_inherited_sockets)
