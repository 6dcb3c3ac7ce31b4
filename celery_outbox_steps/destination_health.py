"""The verdict on one destination: whether its messages get through, if not, why, and what is next.

Pure, like `health.py`, whose words it uses: made of the destination's numbers and of what members
of the fleet tell about it. A destination that is away says nothing about the outbox itself, so each
has a verdict of its own. `celery outbox status` takes it from here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.fleet import (
    BACKING_OFF,
    COOLING_DOWN,
    PAUSED,
    RELAYING,
    STOPPED,
)
from celery_outbox_steps.health import (
    LATE,
    MAX_AGE,
    OVERDUE,
    Verdict,
    age,
    counted,
    first_line,
    no_relay,
    paused_text,
    roll_call,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_outbox_steps.fleet import Fleet, SeenMember
    from celery_outbox_steps.store import Stats

NOT_CONFIGURED, AWAY = "not configured", "broker away"
RESUME = "`celery -A proj outbox resume {}` ends the pause"
LOWEST_RATE = 0.05


@dataclass(frozen=True, slots=True)
class Told:
    """What one relay at work tells about the destination."""

    worker: str
    worker_state: str
    """Of its relay for the app's own broker."""
    state: str
    rate: float
    last_error: str
    """In one short line; empty if there was none."""
    away_for: float
    """Seconds in which the destination has accepted nothing from it; 0 if that is not so."""
    seen_ago: float


def told_about(name: str, fleet: Fleet) -> list[Told]:
    """By the members that are alive and work for the destination, the one seen last first."""
    found = [
        _told(each, each.member.destinations[name])
        for each in _alive(fleet)
        if name in each.member.destinations
    ]
    return sorted(found, key=lambda told: told.seen_ago)


def rate_told(told: Sequence[Told]) -> float:
    """Messages per second, over the last minute, of all these relays."""
    return sum(each.rate for each in told)


def last_error_told(told: Sequence[Told]) -> str:
    """The last error of the relay that was seen last and has one; empty if none has."""
    return next((each.last_error for each in told if each.last_error), "")


def judge_destination(
    name: str, stats: Stats, fleet: Fleet, max_age: float = MAX_AGE, *, configured: bool = True
) -> Verdict:
    """The verdict on one destination. `configured`: by the settings of the process that asks."""
    told = told_about(name, fleet)
    trouble = _trouble(name, stats, fleet, told) if configured else _not_configured(stats)
    if stats.oldest_due_seconds > max_age:
        why = trouble.text if trouble else _why_slow(stats, told, max_age)
        waited = age(stats.oldest_due_seconds)
        return Verdict(LATE, f"late: the oldest due message has waited {waited}; {why}")
    if trouble and trouble.condition == AWAY and _is_late(stats, told, max_age):
        return Verdict(LATE, f"late: {trouble.text}")
    trouble = trouble or _held_back(name, stats)
    return trouble or Verdict("healthy", f"healthy: {_at_work(told)}{_others(told)}{_speed(told)}")


def _trouble(name: str, stats: Stats, fleet: Fleet, told: Sequence[Told]) -> Verdict | None:
    """Why nothing is published to it; None if at least one relay is at work."""
    pause = fleet.pauses.get(name)
    if fleet.pause:
        return Verdict("paused", f"the whole outbox is {paused_text(fleet.pause)}")
    if pause:
        return Verdict("paused", f"{paused_text(pause)}; {RESUME.format(name)}")
    alive = _alive(fleet)
    if not alive:
        return Verdict("no relay", no_relay(fleet.members))
    if not told:
        return _unattended(alive)
    if any(each.state == RELAYING and each.seen_ago <= OVERDUE for each in told):
        return None
    return _unable(stats, told)


def _held_back(name: str, stats: Stats) -> Verdict | None:
    """Messages wait for an earlier one of their key, which perhaps no relay will send."""
    if not (stats.held_back and stats.dead_letters):
        return None
    which, these = f"one of {stats.dead_letters:,} dead letters", "these"
    if stats.dead_letters == 1:
        which, these = "the dead letter", "it"
    return Verdict(
        "held back",
        f"{_messages(stats.held_back)} for an earlier one of the same key, perhaps for {which};"
        f" replay or discard {these}: celery -A proj outbox dead --destination {name}",
    )


def _not_configured(stats: Stats) -> Verdict:
    waiting = (
        f"though {_messages(stats.in_outbox)} for it: name it in CELERY_OUTBOX_DESTINATIONS again, "
        "or discard them in the admin"
        if stats.in_outbox
        else "and no message waits for it"
    )
    return Verdict(NOT_CONFIGURED, f"not configured any more, {waiting}")


def _messages(number: int) -> str:
    return f"{counted(number, 'message')} {'waits' if number == 1 else 'wait'}"


def _unattended(alive: Sequence[SeenMember]) -> Verdict:
    """No relay at work tells anything about the destination."""
    if any(each.member.state == RELAYING for each in alive):
        text = "no relay at work knows it: restart the workers, so that they have these settings"
        return Verdict("no relay", text)
    return Verdict("none at work", f"no relay is at work at this moment: {roll_call(alive)}")


def _unable(stats: Stats, told: Sequence[Told]) -> Verdict:
    """Why no relay that is at work publishes to it."""
    states = {each.state for each in told}
    if COOLING_DOWN in states:
        return Verdict(AWAY, f"{_away(told)}{_error(told, COOLING_DOWN)}{_next(stats)}")
    if BACKING_OFF in states:
        return Verdict("failing", f"its relay fails, and tries again{_error(told, BACKING_OFF)}")
    if any(each.worker_state == PAUSED for each in told):
        text = "its relay is paused in its worker: celery -A proj control outbox_resume"
        return Verdict("paused", text)
    if PAUSED in states:
        return Verdict("none at work", "its pause has ended, and its relay begins within 3 s")
    return Verdict(
        "none at work", f"{_at_work(told)}, not seen for {age(min(each.seen_ago for each in told))}"
    )


def _is_late(stats: Stats, told: Sequence[Told], max_age: float) -> bool:
    """Whether messages wait because it is away. Each attempt gives them a new due time, so the time
    for which they have been due does not tell."""
    waits = stats.in_outbox - stats.scheduled
    return waits > 0 and max(each.away_for for each in told) > max_age


def _away(told: Sequence[Told]) -> str:
    seconds = max(each.away_for for each in told)
    return f"its broker has been away for {age(seconds)}" if seconds else "its broker is away"


def _next(stats: Stats) -> str:
    """What happens with the messages of a destination that is away."""
    if not stats.in_outbox:
        return ". Its relay goes on trying"
    return f". {_messages(stats.in_outbox)} in the table, and its relay goes on trying"


def _why_slow(stats: Stats, told: Sequence[Told], max_age: float) -> str:
    """A relay is at work, and yet a message is late."""
    rate, relays = _rate(told), sum(each.state == RELAYING for each in told)
    who = f"{counted(relays, 'relay')} {'is' if relays == 1 else 'are'} at work"
    if not stats.waiting:
        return f"it is in flight, and {who}"
    if rate < LOWEST_RATE:
        return f"{who}, but published nothing to it in the last minute{_error(told, RELAYING)}"
    speed = f"{rate:,.1f} messages/s, {stats.waiting:,} waiting"
    if stats.waiting > rate * max_age:
        return f"{who} and can't keep up: {speed}"
    return f"{who}, but has not taken it yet: {speed}"


def _at_work(told: Sequence[Told]) -> str:
    return f"{counted(sum(each.state == RELAYING for each in told), 'relay')} at work"


def _others(told: Sequence[Told]) -> str:
    """Those that can't reach it, or fail, while another relay is at work."""
    counts = Counter(each.state for each in told if each.state != RELAYING)
    return "".join(f", {count} {state}" for state, count in sorted(counts.items()))


def _speed(told: Sequence[Told]) -> str:
    rate = _rate(told)
    return f", {rate:,.1f} messages/s in the last minute" if rate >= LOWEST_RATE else ""


def _rate(told: Sequence[Told]) -> float:
    """Of those that reach it."""
    return rate_told([each for each in told if each.state == RELAYING])


def _error(told: Sequence[Told], state: str) -> str:
    line = last_error_told([each for each in told if each.state == state])
    return f": {line.rstrip('.')}" if line else ""


def _alive(fleet: Fleet) -> list[SeenMember]:
    return [each for each in fleet.members if each.alive and each.member.state != STOPPED]


def _told(seen: SeenMember, told: Mapping[str, Any]) -> Told:
    """Read with care: operators may edit the table by hand."""
    state, rate, error = (told.get(each) for each in ("state", "rate", "last_error"))
    return Told(
        seen.member.worker,
        seen.member.state,
        str(state),
        _number(rate),
        first_line(error if isinstance(error, str) else None),
        _number(told.get("away_seconds")),
        seen.seen_ago,
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
