"""RelayGroup and their helper threads as greenlets that run one step at a time, in a chosen order.

A step ends at each call of the database or the broker. `Thread.start` makes an actor of a thread
that an actor starts, and `Thread.join` waits for it in the model, so that the relay itself needs no
change. A process that is killed is never run again; at the end its greenlets are thrown away.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from greenlet import GreenletExit, getcurrent, greenlet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Process:
    """What a kill, a pause or a stop hits: a relay with all its threads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.killed = self.paused = self.stopping = False


class Actor:
    """One thread of a process."""

    def __init__(self, process: Process, body: Callable[[], Any], hub: greenlet) -> None:
        self.process = process
        self.parked = False
        self.waits_for: Actor | None = None
        self.greenlet = greenlet(body, parent=hub)

    @property
    def is_done(self) -> bool:
        return self.greenlet.dead

    @property
    def can_run(self) -> bool:
        waits = self.waits_for is not None and not self.waits_for.is_done
        held = self.process.killed or self.process.paused
        return not (self.is_done or self.parked or waits or held)


class Stage:
    """All actors of a play."""

    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.over = False
        self._hub = getcurrent()
        self._threads: dict[threading.Thread, Actor] = {}

    def run(self, actor: Actor) -> None:
        """Let it go on until its next step."""
        self.current = actor
        actor.greenlet.switch()
        self.current = None

    def add(self, process: Process, body: Callable[[], Any]) -> Actor:
        actor = Actor(process, body, self._hub)
        self.actors.append(actor)
        return actor

    def step(self) -> None:
        """Called by an actor: others may go first."""
        if self.over:
            raise GreenletExit
        self._hub.switch()

    def park(self) -> None:
        """Called by an actor: nothing to do until time passes."""
        actor = self.current
        assert actor is not None
        actor.parked = True
        self.step()

    def end(self) -> None:
        """Throw away what has not ended. Nothing that it still does counts."""
        self.over = True
        for actor in self.actors:
            if not actor.is_done:
                actor.greenlet.throw(GreenletExit)

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Threads that actors start are actors."""
        stage, start, join = self, threading.Thread.start, threading.Thread.join

        def start_actor(thread: threading.Thread) -> None:
            actor = stage.current
            if actor is None:
                start(thread)
            else:
                stage._threads[thread] = stage.add(actor.process, thread.run)

        def join_actor(thread: threading.Thread, timeout: float | None = None) -> None:
            if thread in stage._threads:
                stage._wait_for(stage._threads[thread])
            else:
                join(thread, timeout)

        with (
            mock.patch.object(threading.Thread, "start", start_actor),
            mock.patch.object(threading.Thread, "join", join_actor),
        ):
            yield

    def _wait_for(self, other: Actor) -> None:
        actor = self.current
        if self.over or actor is None or other.is_done:
            return
        actor.waits_for = other
        self._hub.switch()
        actor.waits_for = None
