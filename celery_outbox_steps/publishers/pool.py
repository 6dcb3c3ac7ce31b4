"""Producers are borrowed from the app's own pool, for one batch and no longer.

One attempt to connect (one per configured broker), bounded by the batch's deadline. A connection
that failed goes back closed, so that its next user connects anew.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from kombu.exceptions import LimitExceeded

from celery_outbox_steps.errors import Interrupted, Outage, describe
from celery_outbox_steps.upstream.kombu import close_inherited_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Deadline:
    """The moment at which one batch must have ended."""

    def __init__(self, seconds: float) -> None:
        self._end = monotonic() + seconds

    def left(self) -> float:
        """Seconds to go; a little more than nothing once it has passed, since 0 means "at once"."""
        return max(0.001, self._end - monotonic())

    def passed(self) -> bool:
        return monotonic() >= self._end


@contextmanager
def pooled_producer(
    app: Any, deadline: Deadline, prepare: Callable[[Any], None] | None = None
) -> Iterator[Any]:
    """A connected producer; `Outage` if there is none to be had.

    An exception inside closes the connection before it is given back. It leaves as `Interrupted`,
    unless the block knows better and raises `Outage` itself.
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
        with suppress(Exception):  # what the broker has answered stays answered
            connection.release()


def discard(connection: Any) -> None:
    """Close without AMQP's closing handshake: the broker may not answer it."""
    with suppress(Exception):
        connection.collect(socket_timeout=0.1)


def _acquire(app: Any, deadline: Deadline) -> Any:
    # The producer pool waits without limit for one of its connections, so ask for that directly.
    try:
        return app.producer_pool.connections.acquire(block=True, timeout=deadline.left())
    except LimitExceeded as exc:
        raise Outage(
            "every connection of the app's pool is in use; raise broker_pool_limit"
        ) from exc
    except Exception as exc:  # such as a pool that was closed: no message's fault
        raise Outage(describe(exc)) from exc


def connect(
    connection: Any, deadline: Deadline, prepare: Callable[[Any], None] | None = None
) -> None:
    """One attempt per configured broker. Whatever fails here is an `Outage`: no message was sent,
    and a wrong transport option (a TypeError) is no message's fault either.
    """
    patience = connection.connect_timeout
    try:
        if prepare is not None:
            prepare(connection)
        if connection.connected:
            return
        connection.connect_timeout = min(patience or deadline.left(), deadline.left())
        connection.ensure_connection(
            max_retries=max(0, len(connection.alt or ()) - 1),
            interval_start=0,
            interval_step=0,
            timeout=deadline.left(),
            reraise_as_library_errors=False,
        )
    except Exception as exc:
        raise Outage(describe(exc)) from exc
    finally:
        connection.connect_timeout = patience


_shielded: WeakSet[Any] = WeakSet()


shield = _shielded.add
"""Keep the parent's kombu connection alive when a child is forked."""


def _close_inherited_sockets() -> None:
    for connection in list(_shielded):
        with suppress(Exception):
            close_inherited_socket(connection)
    _shielded.clear()


os.register_at_fork(after_in_child=_close_inherited_sockets)
