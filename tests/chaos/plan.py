"""What will go wrong, in which order: made from a seed, so that a run can be repeated.

A round is one shuffled deck of faults. What each fault may cost stands here as well: `batches` is
how many batches may reach the broker twice because of it, and zero for most of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Blast(Enum):
    """Whose batch in flight a fault can leave of unknown fate."""

    NONE = "none"
    ONE = "one relay"
    ALL = "every relay"


@dataclass(frozen=True)
class Kind:
    """A kind of fault: how often a round has it, and what it may cost."""

    name: str
    title: str
    often: int
    blast: Blast
    why: str
    """Why a batch may arrive twice after it, or why none may."""


KINDS = {
    kind.name: kind
    for kind in (
        Kind("kill", "worker killed (SIGKILL)", 10, Blast.ONE,
             "published and not yet settled: published again after the lease"),
        Kind("warm", "worker stopped warm (SIGTERM)", 10, Blast.NONE,
             "the batch in hand is settled, the rest released"),
        Kind("cold", "worker stopped cold (SIGQUIT)", 1, Blast.NONE,
             "the batch in hand is settled, the rest released"),
        Kind("freeze", "worker frozen beyond its lease (SIGSTOP, SIGCONT)", 1, Blast.ONE,
             "others take its rows over; when it wakes up it is fenced"),
        Kind("broker", "broker restarted", 4, Blast.ALL,
             "RabbitMQ took messages that it could not confirm any more"),
        Kind("alarm", "broker blocks publishers (memory alarm)", 1, Blast.ALL,
             "what lies in the socket is read after the alarm, too late for its confirm"),
        Kind("cut", "connection to the broker cut", 2, Blast.ONE,
             "confirms were on their way"),
        Kind("stall", "connection to the broker stalled", 1, Blast.ONE,
             "what was on its way arrives after the stall, too late for its confirm"),
        Kind("database", "database restarted", 4, Blast.NONE,
             "the batch in hand is settled when the database is back, within the lease"),
        Kind("terminate", "database sessions terminated (pg_terminate_backend)", 2, Blast.NONE,
             "the batch in hand is settled on a new session"),
        Kind("database_cut", "connections to the database cut", 1, Blast.NONE,
             "the batch in hand is settled on a new session"),
        Kind("database_stall", "connections to the database stalled", 1, Blast.NONE,
             "shorter than the lease: settled when it goes on"),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One fault to come."""

    kind: Kind
    pause: float
    """Seconds to wait before it."""
    choice: float
    """0..1: which worker."""
    length: float
    """0..1: how long it lasts, between the shortest and the longest of its kind."""


class Plan:
    """Rounds of faults from one seed."""

    def __init__(self, seed: int, *, pause: float = 2.0) -> None:
        self.seed = seed
        self._pause = pause
        self._random = random.Random(f"faults {seed}")

    def round(self) -> Iterator[Step]:
        """A whole deck, shuffled."""
        return self._steps([kind for kind in KINDS.values() for _ in range(kind.often)])

    def short_round(self) -> Iterator[Step]:
        """Each kind of fault once, and a second kill."""
        return self._steps([*KINDS.values(), KINDS["kill"]])

    def _steps(self, deck: list[Kind]) -> Iterator[Step]:
        draw = self._random.random
        self._random.shuffle(deck)
        for kind in deck:
            yield Step(kind, self._pause * draw(), draw(), draw())
