"""The verdict on a destination, in words, for every condition that it can be in."""

from __future__ import annotations

from typing import Any

import pytest

from celery_outbox_steps import fleet as words
from celery_outbox_steps.destination_health import judge_destination
from celery_outbox_steps.fleet import Fleet, Member, Pause, SeenMember
from celery_outbox_steps.store import Stats

HOUR = 3600.0
REFUSED = "OperationalError: [Errno 111] Connection refused\nTraceback"
LINE = "OperationalError: [Errno 111] Connection refused"
PAUSE = Pause("they moved", "ann", 312)
LATE = "late: the oldest due message has waited 3 h; "


def numbers(**given: Any) -> Stats:
    states = ("waiting", "scheduled", "in_flight", "backing_off", "failing")
    zeros: dict[str, Any] = dict.fromkeys((*states, "dead_letters", "published"), 0)
    return Stats(**{**zeros, "oldest_due_seconds": 0.0, "capped": False, **given})


BACKLOG = numbers(waiting=50_000, oldest_due_seconds=3 * HOUR)


def seen(
    told: tuple[Any, ...] = (),
    *,
    state: str = words.RELAYING,
    ago: float = 1.0,
    alive: bool = True,
) -> SeenMember:
    """A member of the fleet, and what it tells about the destination: state, rate, last error, and
    for how long it has been away."""
    fields = ("state", "rate", "last_error", "away_seconds")
    destinations = {"partner": dict(zip(fields, told, strict=False))} if told else {}
    member = Member("relay-1", "celery@host", "1.0", state, destinations=destinations)
    return SeenMember(member, slot=0, started_ago=9 * HOUR, seen_ago=ago, alive=alive)


AT_WORK = seen((words.RELAYING, 0.0, None))
BUSY = seen((words.RELAYING, 12.5, None))
AWAY = seen((words.COOLING_DOWN, 0.0, REFUSED))
LONG_AWAY = seen((words.COOLING_DOWN, 0.0, REFUSED, 720))
GONE = seen(ago=3 * HOUR, alive=False)
STANDBY = seen(state=words.STANDING_BY)

CASES: dict[str, tuple[Stats, Fleet, tuple[str, str]]] = {
    "idle": (numbers(), Fleet((AT_WORK, STANDBY)), ("ok", "healthy: 1 relay at work")),
    "busy": (
        numbers(waiting=3),
        Fleet((BUSY, BUSY)),
        ("ok", "healthy: 2 relays at work, 25.0 messages/s in the last minute"),
    ),
    "one of two relays can't reach it": (
        numbers(),
        Fleet((BUSY, AWAY)),
        (
            "ok",
            "healthy: 1 relay at work, 1 cooling down after an outage, 12.5 messages/s in the last"
            " minute",
        ),
    ),
    "away": (
        numbers(waiting=1),
        Fleet((AWAY,)),
        (
            "warning",
            f"its broker is away: {LINE}. 1 message waits in the table, and its relay goes on"
            " trying",
        ),
    ),
    "away, and nothing waits": (
        numbers(),
        Fleet((AWAY,)),
        ("warning", f"its broker is away: {LINE}. Its relay goes on trying"),
    ),
    "away for long, and messages wait, each of which was tried a moment ago": (
        numbers(backing_off=2),
        Fleet((LONG_AWAY,)),
        (
            "error",
            f"late: its broker has been away for 12 min: {LINE}. 2 messages wait in the table, and"
            " its relay goes on trying",
        ),
    ),
    "away for long, and nothing waits but for later": (
        numbers(scheduled=3),
        Fleet((LONG_AWAY,)),
        (
            "warning",
            f"its broker has been away for 12 min: {LINE}. 3 messages wait in the table, and its"
            " relay goes on trying",
        ),
    ),
    "late because it is away": (
        BACKLOG,
        Fleet((AWAY,)),
        (
            "error",
            f"{LATE}its broker is away: {LINE}. 50,000 messages wait in the table, and its relay"
            " goes on trying",
        ),
    ),
    "paused": (
        numbers(),
        Fleet((AT_WORK,), pauses={"partner": PAUSE}),
        (
            "warning",
            "paused for 5 min 12 s by ann: they moved; `celery -A proj outbox resume partner` ends"
            " the pause",
        ),
    ),
    "the whole outbox is paused": (
        numbers(),
        Fleet((AT_WORK,), PAUSE, {"partner": PAUSE}),
        ("warning", "the whole outbox is paused for 5 min 12 s by ann: they moved"),
    ),
    "another destination is paused": (
        numbers(),
        Fleet((AT_WORK,), pauses={"lake": PAUSE}),
        ("ok", "healthy: 1 relay at work"),
    ),
    "its relay is paused alone": (
        numbers(),
        Fleet((seen((words.PAUSED, 0.0, None), state=words.PAUSED),)),
        (
            "warning",
            "its relay is paused in its worker: celery -A proj control outbox_resume",
        ),
    ),
    "resumed a moment ago": (
        numbers(),
        Fleet((seen((words.PAUSED, 0.0, None)),)),
        ("warning", "its pause has ended, and its relay begins within 3 s"),
    ),
    "its relay fails": (
        numbers(),
        Fleet((seen((words.BACKING_OFF, 0.0, "StoreError: permission denied")),)),
        ("warning", "its relay fails, and tries again: StoreError: permission denied"),
    ),
    "no relay": (
        numbers(),
        Fleet((GONE,)),
        ("warning", "no relay has been seen for 3 h: start a worker with --outbox-relay"),
    ),
    "standbys only": (
        numbers(),
        Fleet((STANDBY,)),
        ("warning", "no relay is at work at this moment: 1 relay standing by"),
    ),
    "workers with older settings": (
        numbers(),
        Fleet((seen(),)),
        (
            "warning",
            "no relay at work knows it: restart the workers, so that they have these settings",
        ),
    ),
    "its relay may be dead": (
        numbers(),
        Fleet((seen((words.RELAYING, 0.0, None), ago=12),)),
        ("warning", "1 relay at work, not seen for 12 s"),
    ),
    "too slow": (
        BACKLOG,
        Fleet((BUSY,)),
        ("error", f"{LATE}1 relay is at work and can't keep up: 12.5 messages/s, 50,000 waiting"),
    ),
    "at work without a result": (
        BACKLOG,
        Fleet((seen((words.RELAYING, 0.0, REFUSED)),)),
        (
            "error",
            f"{LATE}1 relay is at work, but published nothing to it in the last minute: {LINE}",
        ),
    ),
    "late in flight": (
        numbers(in_flight=1, oldest_due_seconds=3 * HOUR),
        Fleet((BUSY,)),
        ("error", f"{LATE}it is in flight, and 1 relay is at work"),
    ),
    "held back by a dead letter": (
        numbers(held_back=41, dead_letters=1),
        Fleet((AT_WORK,)),
        (
            "warning",
            "41 messages wait for an earlier one of the same key, perhaps for the dead letter;"
            " replay or discard it: celery -A proj outbox dead --destination partner",
        ),
    ),
    "held back by one of several dead letters": (
        numbers(held_back=1, dead_letters=2),
        Fleet((AT_WORK,)),
        (
            "warning",
            "1 message waits for an earlier one of the same key, perhaps for one of 2 dead letters;"
            " replay or discard these: celery -A proj outbox dead --destination partner",
        ),
    ),
    "held back for a moment": (
        numbers(held_back=41),
        Fleet((AT_WORK,)),
        ("ok", "healthy: 1 relay at work"),
    ),
    "a table that was edited by hand": (
        numbers(),
        Fleet((seen((words.RELAYING, "much", 5)),)),
        ("ok", "healthy: 1 relay at work"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_says_what_is_the_case_and_why(case: str) -> None:
    stats, fleet, said = CASES[case]
    verdict = judge_destination("partner", stats, fleet)
    assert (verdict.level, verdict.text) == said
    assert verdict.is_late is (verdict.level == "error")


def test_one_that_is_not_configured_any_more_says_what_to_do() -> None:
    verdict = judge_destination("partner", numbers(waiting=2), Fleet((AT_WORK,)), configured=False)
    assert (verdict.condition, verdict.text) == (
        "not configured",
        "not configured any more, though 2 messages wait for it: name it in"
        " CELERY_OUTBOX_DESTINATIONS again, or discard them in the admin",
    )


def test_what_is_late_is_for_the_caller_to_say() -> None:
    stats, fleet = numbers(waiting=1, oldest_due_seconds=59), Fleet((BUSY,))
    found = [judge_destination("partner", stats, fleet, age).is_late for age in (30, 59, 60)]
    assert found == [True, False, False]
