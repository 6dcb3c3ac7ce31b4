"""The verdict on an outbox: one sentence that says whether messages get through, and if not, why.

Pure: made of the numbers of the outbox and of its fleet, without a query and without a clock. The
admin, `celery outbox status` and probes all take it from here, so they can't disagree. Where the
numbers come from: `OperatorStore.stats` and `OperatorStore.fleet`. Destinations have verdicts of
their own: `destination_health.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_outbox_steps.fleet import (
    BACKING_OFF,
    COOLING_DOWN,
    MEMBERSHIP,
    PAUSED,
    REFRESH,
    RELAYING,
    STANDING_BY,
    STOPPED,
    UNABLE_SECONDS,
    WAITING_FOR_BROKER,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery_outbox_steps.fleet import Fleet, Pause, SeenMember
    from celery_outbox_steps.store import Stats

OVERDUE = 3 * REFRESH
"""Seconds after which a relay at work should have been seen."""
STARTING = 10.0
"""Seconds after its start in which a worker may still be connecting to the broker."""
MAX_AGE = 60.0
"""Seconds after which a message that is due and not published is late."""

OK, WARNING, ERROR = "ok", "warning", "error"
LONGEST_ERROR = 200
LATE = "late"
START_ONE = "start a worker with --outbox-relay"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to tell people and probes."""

    condition: str
    """healthy, late, paused, broker away, failing, no relay or none at work; of a destination also
    held back or not configured."""
    text: str

    @property
    def level(self) -> str:
        """ok, warning or error: green, amber or red."""
        return {"healthy": OK, LATE: ERROR}.get(self.condition, WARNING)

    @property
    def is_late(self) -> bool:
        """Whether a message has been due for longer than allowed, for whatever reason."""
        return self.condition == LATE


def judge(stats: Stats, fleet: Fleet, max_age: float = MAX_AGE) -> Verdict:
    """The verdict on one outbox."""
    alive = [each for each in fleet.members if each.alive and each.member.state != STOPPED]
    trouble = _trouble(fleet, alive)
    if stats.oldest_due_seconds > max_age:
        why = trouble.text if trouble else _why_slow(stats, alive, max_age)
        waited = age(stats.oldest_due_seconds)
        return Verdict(LATE, f"late: the oldest due message has waited {waited}; {why}")
    return trouble or Verdict("healthy", f"healthy: {roll_call(alive)}")


def age(seconds: float, precision: int = 2) -> str:
    """A duration for people, in its two largest units: "3 min 20 s", "2 d 4 h", "3 h"."""
    left, sizes = max(0, int(seconds)), list(_UNITS)
    while len(sizes) > 1 and left < sizes[0][0]:
        del sizes[0]
    parts = []
    for size, unit in sizes[:precision]:
        parts.append((left // size, unit))
        left %= size
    shown = [part for part in parts if part[0]] or parts[-1:]
    return " ".join(f"{number} {unit}" for number, unit in shown)


def first_line(error: str | None) -> str:
    """An error in one short line."""
    line = next(iter((error or "").strip().splitlines()), "")
    return line if len(line) <= LONGEST_ERROR else f"{line[: LONGEST_ERROR - 1]}…"


def _trouble(fleet: Fleet, alive: Sequence[SeenMember]) -> Verdict | None:
    """Why no message is published; None if at least one relay is at work."""
    if fleet.pause:
        nobody = "" if alive else f"; {no_relay(fleet.members)}"
        return Verdict("paused", f"{paused_text(fleet.pause)}{nobody}")
    if not alive:
        return Verdict("no relay", no_relay(fleet.members))
    relaying = _in(alive, RELAYING)
    if any(each.seen_ago <= OVERDUE for each in relaying):
        return None
    return _overdue(relaying) if relaying else _unable(alive)


def _overdue(relaying: Sequence[SeenMember]) -> Verdict:
    """They may be busy with a slow broker, or dead."""
    seen = age(min(each.seen_ago for each in relaying))
    return Verdict(
        "none at work",
        f"{counted(len(relaying), 'relay')} at work, not seen for {seen}; after {MEMBERSHIP:g} s"
        " another takes over",
    )


def _unable(alive: Sequence[SeenMember]) -> Verdict:
    """Why no relay of those that are alive is at work."""
    states = {each.member.state for each in alive}
    if all(map(_is_starting, alive)):
        return Verdict("none at work", f"{counted(len(alive), 'relay')} starting")
    if states & {WAITING_FOR_BROKER, COOLING_DOWN}:
        return Verdict("broker away", _broker_away(_in(alive, WAITING_FOR_BROKER, COOLING_DOWN)))
    if BACKING_OFF in states:
        return Verdict("failing", f"every relay fails{_error(_in(alive, BACKING_OFF))}")
    if PAUSED in states:
        return Verdict("paused", "every relay is paused: celery -A proj control outbox_resume")
    return Verdict("none at work", f"no relay is at work at this moment: {roll_call(alive)}")


def _is_starting(seen: SeenMember) -> bool:
    """A worker takes a moment to connect to its broker. If it fails, it will have been unable."""
    member = seen.member
    is_new = seen.started_ago < STARTING and not member.counters.get(UNABLE_SECONDS)
    return is_new and member.state == WAITING_FOR_BROKER and not member.last_error


def paused_text(pause: Pause) -> str:
    """For how long, by whom and why."""
    by = f" by {pause.paused_by}" if pause.paused_by else ""
    reason = f": {pause.reason}" if pause.reason else ""
    return f"paused for {age(pause.seconds)}{by}{reason}"


def no_relay(members: Sequence[SeenMember]) -> str:
    """No member of the fleet is alive."""
    if not members:
        return f"no relay is running: {START_ONE}"
    seen = min(each.seen_ago for each in members)
    return f"no relay has been seen for {age(seen)}: {START_ONE}"


def _broker_away(members: Sequence[SeenMember]) -> str:
    seconds = max(each.member.counters.get(UNABLE_SECONDS, 0) for each in members)
    since = f"has been away for {age(seconds)}" if seconds else "is away"
    return f"the broker {since}{_error(members)}"


def _why_slow(stats: Stats, alive: Sequence[SeenMember], max_age: float) -> str:
    """Relays are at work, and yet a message is late."""
    relaying = _in(alive, RELAYING)
    rate = sum(each.member.rate for each in relaying)
    who = counted(len(relaying), "relay")
    verb, has = ("is", "has") if len(relaying) == 1 else ("are", "have")
    if not stats.waiting:
        return f"it is in flight, and {who} {verb} at work"
    if rate <= 0:
        return f"{who} {verb} at work, but published nothing in the last minute{_error(relaying)}"
    speed = f"{rate:,.1f} messages/s, {stats.waiting:,} waiting"
    if stats.waiting > rate * max_age:
        return f"{who} {verb} at work and can't keep up: {speed}"
    return f"{who} {verb} at work, but {has} not taken it: {speed}"


def roll_call(alive: Sequence[SeenMember]) -> str:
    """How many members do what: "2 relays at work, 18 standing by"."""
    counts = Counter(each.member.state for each in alive)
    names = {RELAYING: "at work"}
    order = [RELAYING, *sorted(counts.keys() - {RELAYING, STANDING_BY}), STANDING_BY]
    said = [(counts[state], names.get(state, state)) for state in order if counts[state]]
    first, *others = said
    return ", ".join(
        [
            f"{counted(first[0], 'relay')} {first[1]}",
            *(f"{count} {what}" for count, what in others),
        ]
    )


def _in(members: Iterable[SeenMember], *states: str) -> list[SeenMember]:
    return [each for each in members if each.member.state in states]


def _error(members: Sequence[SeenMember]) -> str:
    """The last error of the member that was seen last."""
    latest = sorted(members, key=lambda each: each.seen_ago)
    found = (first_line(each.member.last_error) for each in latest)
    return next((f": {line}" for line in found if line), "")


def counted(number: int, noun: str) -> str:
    """A number and its noun: "1 relay", "2,000 relays"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
