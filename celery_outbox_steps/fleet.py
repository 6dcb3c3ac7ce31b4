"""The fleet: every relay that serves one outbox, the few that hold a slot, and the pause of it all.

Each worker with `--outbox-relay` is a member. `CELERY_OUTBOX_RELAYS` of them hold a slot and work;
the others stand by and check in from time to time, to see whether a slot is free. No promise about
a message rests on the fleet: leases and fences protect the rows, whatever the fleet believes. Next:
`places.py`, the rules of a check-in, and `celery_outbox_steps.worker.membership`, which calls it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MEMBERSHIP = 15.0
"""Seconds without a check-in after which a member counts as dead, and its slot is free."""
REFRESH = 3.0
"""Seconds between two check-ins of a member that holds a slot."""
TURN = 1.0
"""Seconds between two check-ins of all members that stand by, together: they take turns."""
LONGEST_TURN = 6 * 3600.0
"""The most seconds until a member's turn: beyond 21,600 standbys they come more often than that."""
SILENCE = 5.0
"""Seconds without a check-in by anybody that are no evidence of a death: the database was away."""
LONGEST_SILENCE = 300.0
"""Beyond this many seconds a silence means that there were no relays."""
TOLD = 3
"""How many of those that stand by are told that a slot is free: some of them may be gone."""
REMEMBERED = 3600.0
"""Seconds for which a member that stopped or died is still shown."""

NO_REASON = "no reason given"

RELAYING = "relaying"
STANDING_BY = "standing by"
PAUSED = "paused"
WAITING_FOR_BROKER = "waiting for the broker"
COOLING_DOWN = "cooling down after an outage"
BACKING_OFF = "backing off after an error"
STOPPED = "stopped"

UNABLE_SECONDS = "unable_seconds"
"""Among the counters: for how long the relay has been unable to work. Missing or 0: it is able."""


@dataclass(frozen=True, slots=True)
class Member:
    """What a relay tells about itself when it checks in."""

    relay_id: str
    worker: str
    """The worker's name, such as celery@host."""
    version: str
    """The version of this package."""
    state: str
    """What it does if it has a slot; without one, the Store writes "standing by"."""
    rate: float = 0.0
    """Messages published per second, over the last minute."""
    counters: Mapping[str, int] = field(default_factory=dict)
    last_error: str | None = None
    destinations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What it does for each destination: `state`, `rate`, `last_error`."""


@dataclass(frozen=True, slots=True)
class Pause:
    """An outbox, or a destination, is paused: no relay of the fleet publishes its messages until
    it is resumed."""

    reason: str
    paused_by: str
    seconds: float
    """How long ago."""


@dataclass(frozen=True, slots=True)
class Place:
    """The answer to a check-in."""

    at_work: bool
    """Whether this member holds a slot, or needs none."""
    check_in_after: float
    """Seconds until its next check-in."""
    standbys: int = 0
    """How many others stand by, and could take a slot over."""
    pause: Pause | None = None


@dataclass(frozen=True, slots=True)
class SeenMember:
    """A member as others see it. Ages in seconds, by the database's clock."""

    member: Member
    slot: int | None
    started_ago: float
    seen_ago: float
    alive: bool
    """Whether its membership has not run out."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everybody who is or was there lately, and the pause of the outbox."""

    members: tuple[SeenMember, ...] = ()
    pause: Pause | None = None
    pauses: Mapping[str, Pause] = field(default_factory=dict)
    """Those of single destinations."""
