"""The fork barrier: a worker's forks wait for the end of a unit of the relay's work.

A fork in the middle of one would copy sockets and locks that are in use. The barrier acts through
`os.register_at_fork`, once per process, and can delay a fork but never prevents it. In a child,
`celery_outbox_steps.publishers.pool` closes the inherited sockets.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


class ForkBarrier:
    """`with barrier:` around a unit of work. A fork waits for its end, `timeout` seconds at most.

    Fair: while a fork waits, no new unit starts, even if a relay never pauses. Several threads may
    work at once, and any thread may fork. A unit that hangs (a statement that waits for a lock)
    delays one fork by the timeout; later forks do not wait for that unit again.
    """

    def __init__(self, timeout: float = 1.0) -> None:
        self.timeout = timeout
        self._reset()
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_in_parent,
            after_in_child=self._reset,
        )

    def _reset(self) -> None:
        # A child has neither the working threads nor a thread that could notify.
        self._changed = threading.Condition(threading.Lock())
        self._working: set[int] = set()
        self._hanging: set[int] = set()
        self._forks = 0

    def __enter__(self) -> None:
        with self._changed:
            while self._forks:
                # With a timeout, so that a fork that never returns can't stop the relay for good.
                if not self._changed.wait(self.timeout * 2):
                    break
            self._working.add(threading.get_ident())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._working.discard(threading.get_ident())
            self._hanging.discard(threading.get_ident())
            self._changed.notify_all()

    @contextmanager
    def without_delay(self) -> Iterator[None]:
        """For a unit that will probably hang: it waits for forks, and no fork waits for it."""
        with self:
            with self._changed:
                self._hanging.add(threading.get_ident())
                self._changed.notify_all()
            yield

    def _before_fork(self) -> None:
        end = monotonic() + self.timeout
        with self._changed:
            self._forks += 1
            while waited_for := self._working - self._hanging - {threading.get_ident()}:
                if not self._changed.wait(max(0.0, end - monotonic())):
                    self._hanging |= waited_for

    def _after_in_parent(self) -> None:
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()


barrier = ForkBarrier()
"""The only barrier of this process, because `register_at_fork` can't be undone."""
