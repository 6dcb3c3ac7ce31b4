"""The verdict on an outbox, in words, for every condition that it can be in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_outbox_steps import fleet as words
from celery_outbox_steps.fleet import Fleet, Member, Pause, SeenMember
from celery_outbox_steps.health import Verdict, age, first_line, judge
from celery_outbox_steps.store import Stats

HOUR = 3600.0
REFUSED = "OperationalError: [Errno 111] Connection refused\nTraceback"


def outbox(*, oldest: float = 0.0, waiting: int = 0, in_flight: int = 0) -> Stats:
    return Stats(
        waiting=waiting,
        scheduled=0,
        in_flight=in_flight,
        backing_off=0,
        failing=0,
        dead_letters=0,
        published=0,
        oldest_due_seconds=oldest,
        capped=False,
    )


def seen(
    state: str = words.RELAYING, ago: float = 1.0, *, alive: bool = True, **about: Any
) -> SeenMember:
    member = Member("relay-1", "celery@host", "1.0", state, **about)
    return SeenMember(member, slot=None, started_ago=9 * HOUR, seen_ago=ago, alive=alive)


def starting(**about: Any) -> SeenMember:
    return replace(seen(words.WAITING_FOR_BROKER, **about), started_ago=2)


def away(**about: Any) -> SeenMember:
    return seen(words.WAITING_FOR_BROKER, last_error=REFUSED, **about)


GONE = seen(ago=3 * HOUR, alive=False)
STANDBYS = (seen(words.STANDING_BY),) * 18
PAUSE = Pause("migration of orders", "ann", 312)
LATE = "late: the oldest due message has waited 3 h; "
BACKLOG = outbox(oldest=3 * HOUR, waiting=50_000)

CASES = {
    "healthy": (
        outbox(oldest=59, waiting=3),
        Fleet((seen(), seen(), *STANDBYS)),
        ("ok", "healthy: 2 relays at work, 18 standing by"),
    ),
    "healthy, with one relay's broker away": (
        outbox(),
        Fleet((seen(), away(), *STANDBYS)),
        ("ok", "healthy: 1 relay at work, 1 waiting for the broker, 18 standing by"),
    ),
    "relays that connect to the broker": (
        outbox(),
        Fleet((GONE, starting(), starting())),
        ("warning", "2 relays starting"),
    ),
    "relays that tried to connect": (
        outbox(),
        Fleet((starting(counters={words.UNABLE_SECONDS: 1}), starting())),
        ("warning", "the broker has been away for 1 s"),
    ),
    "no relay has ever been here": (
        outbox(),
        Fleet(),
        ("warning", "no relay is running: start a worker with --outbox-relay"),
    ),
    "no relay any more": (
        outbox(),
        Fleet((GONE, seen(words.STOPPED, 4 * HOUR))),
        ("warning", "no relay has been seen for 3 h: start a worker with --outbox-relay"),
    ),
    "late without a relay": (
        BACKLOG,
        Fleet((GONE,)),
        ("error", f"{LATE}no relay has been seen for 3 h: start a worker with --outbox-relay"),
    ),
    "paused": (
        outbox(),
        Fleet((seen(words.PAUSED),), PAUSE),
        ("warning", "paused for 5 min 12 s by ann: migration of orders"),
    ),
    "paused without a reason or a name": (
        outbox(),
        Fleet((seen(words.PAUSED),), Pause("", "", 300)),
        ("warning", "paused for 5 min"),
    ),
    "late because it is paused": (
        BACKLOG,
        Fleet((seen(words.PAUSED),), PAUSE),
        ("error", f"{LATE}paused for 5 min 12 s by ann: migration of orders"),
    ),
    "paused, and nobody is there": (
        outbox(),
        Fleet((GONE,), PAUSE),
        (
            "warning",
            "paused for 5 min 12 s by ann: migration of orders; no relay has been seen for 3 h: "
            "start a worker with --outbox-relay",
        ),
    ),
    "the relays at work may be dead": (
        outbox(oldest=10, waiting=3),
        Fleet((seen(ago=12), seen(ago=13), *STANDBYS)),
        (
            "warning",
            "2 relays at work, not seen for 12 s; after 15 s another takes over",
        ),
    ),
    "every relay paused by itself": (
        outbox(),
        Fleet((seen(words.PAUSED), *STANDBYS)),
        ("warning", "every relay is paused: celery -A proj control outbox_resume"),
    ),
    "the broker is away": (
        outbox(oldest=20, waiting=3),
        Fleet((away(), seen(words.COOLING_DOWN), *STANDBYS)),
        ("warning", "the broker is away: OperationalError: [Errno 111] Connection refused"),
    ),
    "late because the broker is away": (
        BACKLOG,
        Fleet((away(counters={words.UNABLE_SECONDS: 10_920}),)),
        (
            "error",
            f"{LATE}the broker has been away for 3 h 2 min: OperationalError: [Errno 111] "
            "Connection refused",
        ),
    ),
    "every relay fails": (
        outbox(),
        Fleet((seen(words.BACKING_OFF, last_error="StoreError: permission denied"),)),
        ("warning", "every relay fails: StoreError: permission denied"),
    ),
    "standbys only": (
        outbox(),
        Fleet((GONE, *STANDBYS)),
        ("warning", "no relay is at work at this moment: 18 relays standing by"),
    ),
    "too slow": (
        BACKLOG,
        Fleet((seen(rate=300.0), seen(rate=12.5))),
        (
            "error",
            f"{LATE}2 relays are at work and can't keep up: 312.5 messages/s, 50,000 waiting",
        ),
    ),
    "at work without a result": (
        BACKLOG,
        Fleet((seen(last_error=REFUSED),)),
        (
            "error",
            f"{LATE}1 relay is at work, but published nothing in the last minute: "
            "OperationalError: [Errno 111] Connection refused",
        ),
    ),
    "one message left alone": (
        outbox(oldest=3 * HOUR, waiting=1),
        Fleet((seen(rate=300.0),)),
        ("error", f"{LATE}1 relay is at work, but has not taken it: 300.0 messages/s, 1 waiting"),
    ),
    "late in flight": (
        outbox(oldest=3 * HOUR, in_flight=1),
        Fleet((seen(),)),
        ("error", f"{LATE}it is in flight, and 1 relay is at work"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_says_what_is_the_case_and_why(case: str) -> None:
    stats, fleet, said = CASES[case]
    verdict = judge(stats, fleet)
    assert (verdict.level, verdict.text) == said
    assert verdict.is_late is (verdict.level == "error")


def test_what_is_late_is_for_the_caller_to_say() -> None:
    stats, fleet = outbox(oldest=59, waiting=1), Fleet((seen(),))
    assert [judge(stats, fleet, max_age).is_late for max_age in (30, 59, 60)] == [
        True,
        False,
        False,
    ]


def test_a_probe_is_told_the_condition_in_a_word() -> None:
    assert judge(outbox(), Fleet()) == Verdict(
        "no relay", CASES["no relay has ever been here"][2][1]
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59, "59 s"),
        (200, "3 min 20 s"),
        (300, "5 min"),
        (3 * HOUR, "3 h"),
        (3 * HOUR + 59, "3 h"),
        (2 * 86_400 + 4 * HOUR + 59, "2 d 4 h"),
        (-1, "0 s"),
    ],
)
def test_an_age_is_told_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_an_error_is_told_in_one_short_line() -> None:
    assert first_line(f"\n{REFUSED}") == "OperationalError: [Errno 111] Connection refused"
    assert first_line(None) == ""
    assert len(first_line("x" * 5000)) == 200
