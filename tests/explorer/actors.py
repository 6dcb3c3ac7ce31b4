"""Relays and their helper threads as greenlets that run one step at a time, in a chosen order.

A step ends at each call of the database or the broker. A relay gets an `ActorThread` in place of a
`PrefetchThread`: what runs in it is an actor, and to wait for it is to wait in the model. A process
that is killed is never run again; at the end its greenlets are thrown away.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, getcurrent, greenlet

if TYPE_CHECKING:
    from collections.abc import Callable


class Process:
    """What a kill, a pause or a stop hits: a relay with all its threads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.killed = self.paused = self.stopping = False
        self.was_paused = False


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

    def wait_for(self, other: Actor) -> None:
        """Called by an actor: it goes on when the other one has ended."""
        actor = self.current
        if self.over or actor is None or other.is_done:
            return
        actor.waits_for = other
        self._hub.switch()
        actor.waits_for = None


class ActorThread:
    """In place of a relay's `PrefetchThread`: each function that it runs is an actor.

    As on the real one, errors stay in the thread, and one function runs at a time.
    """

    def __init__(self, stage: Stage, process: Process) -> None:
        self._stage = stage
        self._process = process
        self._actor: Actor | None = None

    def start(self, function: Callable[[], None]) -> bool:
        assert self._actor is None or self._actor.is_done, "it is used by two at once"

        def body() -> None:
            with suppress(Exception):
                function()

        self._actor = self._stage.add(self._process, body)
        return True

    def wait(self) -> None:
        if self._actor is not None:
            self._stage.wait_for(self._actor)

    def close(self) -> None:
        assert self._actor is None or self._actor.is_done, "it is closed while it works"
