"""Wake-ups: a self-pipe on every database, and LISTEN on PostgreSQL.

`wake()` is one `os.write`, so that any thread and any signal handler may call it. The relay
LISTENs on the session it works with; a notification that arrives while a statement runs ends the
next wait. LISTEN does not work behind a pooler: that is detected and logged once, and the relay
polls instead.
"""

from __future__ import annotations

import math
import os
import select
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.db.utils import Error

from celery_outbox_steps.observe.log import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_integration.store.session import Session


ANY = b"\0"
"""The mark of a wake-up that is for nothing in particular."""
POOLED = "a connection pooler sits between the relay and PostgreSQL"


class WakePipe:
    """A self-pipe: a write, here or in a forked child, ends a wait in this process.

    `on_wake` is called by the thread that waited, with the marks of the writes.
    """

    def __init__(self, on_wake: Callable[[bytes], None] = lambda _: None) -> None:
        self._on_wake = on_wake
        self._open()

    def write(self, mark: bytes = ANY) -> None:
        """Wake. `mark`: one byte that says what for."""
        # A full pipe holds enough wake-ups already. A child may have closed the descriptor that it
        # inherited, as beat does, and the number may be a socket's by now.
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._writer), self._pipe):
                os.write(self._writer, mark)

    def wait(self, timeout: float, *more: int) -> bool:
        """Block until woken, until one of `more` descriptors is readable, or for `timeout` s."""
        if self._pid != os.getpid():
            self._open()  # the parent reads the inherited pipe; a child needs its own
        poll = select.poll()
        for descriptor in (self._reader, *more):
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(math.ceil(max(timeout, 0) * 1000))]
        if self._reader in ready:
            self._on_wake(self._drain())
        return bool(ready)

    def _open(self) -> None:
        self._pid = os.getpid()
        self._reader, self._writer = os.pipe()
        self._pipe = os.fstat(self._writer)
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def _drain(self) -> bytes:
        marks = b""
        with suppress(BlockingIOError):
            while read := os.read(self._reader, 65536):
                marks += read
        return marks

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            if self._pid == os.getpid():
                os.close(self._reader)
                os.close(self._writer)


class Listener:
    """LISTEN on a Session, for psycopg 3 and psycopg2.

    `on_payload` is called with what a notification says.
    """

    def __init__(self, channel: str, on_payload: Callable[[str], None]) -> None:
        self._channel = channel
        self._on_payload = on_payload
        self.listening = False
        self._notified = False
        self._is_logged = False

    def begin(self, session: Session, *, pooled: bool) -> None:
        """Called once for each connection that is to listen."""
        reason = POOLED if pooled else self._listen(session)
        if reason:
            self._log_unavailable(session.alias, reason)
            return
        if hasattr(session.raw, "add_notify_handler"):
            session.raw.add_notify_handler(self._note)
        self.listening = True

    def heard(self, session: Session) -> bool:
        """Whether a notification has arrived since the last call. Never blocks."""
        raw = session.raw
        with session.wrapper.wrap_database_errors:
            if hasattr(raw, "pgconn"):
                self._read_psycopg(raw.pgconn)
            else:
                self._read_psycopg2(raw)
        notified, self._notified = self._notified, False
        return notified

    def _listen(self, session: Session) -> str:
        """Run LISTEN; the reason why it can't work here, or an empty text."""
        try:
            with session.wrapper.cursor() as cursor:
                cursor.execute(f"LISTEN {self._channel}")
        except Error as error:
            if not session.wrapper.is_usable():
                raise
            return str(error).strip()
        return ""

    def _log_unavailable(self, alias: str, reason: str) -> None:
        if not self._is_logged:
            log("celery_outbox_listen_unavailable", alias, reason, database=alias, reason=reason)
        self._is_logged = True

    def _note(self, notification: Any) -> None:
        self._hear(notification.payload)

    def _hear(self, payload: str) -> None:
        self._notified = True
        self._on_payload(payload)

    def _read_psycopg(self, pgconn: Any) -> None:
        pgconn.consume_input()
        while (notification := pgconn.notifies()) is not None:
            self._hear(notification.extra.decode())

    def _read_psycopg2(self, raw: Any) -> None:
        raw.poll()
        while raw.notifies:
            self._note(raw.notifies.pop(0))
