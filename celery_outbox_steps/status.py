"""What `celery outbox status` shows: verdicts, numbers, relays, pauses and release rates.

One dictionary for each database, with one for each destination in it: `--json` prints it as it is,
`status_text.py` makes text of it. A project without destinations and rates has empty lists there.
Next: `health.py` and `destination_health.py`, which judge.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.destination_health import (
    judge_destination,
    last_error_told,
    rate_told,
    told_about,
)
from celery_outbox_steps.health import MAX_AGE, judge
from celery_outbox_steps.operate import closing_store
from celery_outbox_steps.settings import read
from celery_outbox_steps.store import load_stores

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from celery_outbox_steps.fleet import Fleet, SeenMember
    from celery_outbox_steps.health import Verdict
    from celery_outbox_steps.rates import Rate
    from celery_outbox_steps.store import OperatorStore, Stats


def status(
    app: Any, top: int = 10, max_age: float | None = None, databases: Collection[str] = ()
) -> list[dict[str, Any]]:
    """The verdict on each database's outbox, its numbers, its relays, its destinations."""
    found, allowed = [], MAX_AGE if max_age is None else max_age
    for store in load_stores(app, databases):
        with closing_store(store):
            found.append({"database": store.name, **_status_of(app, store, top, allowed)})
    return found


def is_late(found: dict[str, Any]) -> bool:
    """Whether a message of this outbox is late, for whatever destination."""
    verdicts = [found["verdict"], *(each["verdict"] for each in found["destinations"])]
    return any(verdict["late"] for verdict in verdicts)


def _status_of(app: Any, store: OperatorStore, top: int, max_age: float) -> dict[str, Any]:
    stats, fleet = store.stats(top), store.fleet()
    numbers = _numbers(stats)
    del numbers["held_back"]  # only a message for a destination has a key to wait for
    return {
        "verdict": _verdict(judge(stats, fleet, max_age)),
        **numbers,
        "relays": [_relay(each) for each in fleet.members],
        "pause": None if fleet.pause is None else asdict(fleet.pause),
        "destinations": _destinations(app, store, fleet, top, max_age),
        "rates": _rates(read(app.conf, "rates"), store.rates()),
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {**asdict(verdict), "level": verdict.level, "late": verdict.is_late}


def _numbers(stats: Stats) -> dict[str, Any]:
    return {"in_outbox": stats.in_outbox, **asdict(stats)}


def _relay(seen: SeenMember) -> dict[str, Any]:
    member = asdict(seen.member)
    return {
        "relay": member.pop("relay_id"),
        **member,
        "slot": seen.slot,
        "alive": seen.alive,
        "started_seconds": seen.started_ago,
        "seen_seconds": seen.seen_ago,
    }


def _destinations(
    app: Any, store: OperatorStore, fleet: Fleet, top: int, max_age: float
) -> list[dict[str, Any]]:
    """Those that are configured, and others that messages are stored for."""
    configured = read(app.conf, "destinations")
    found = []
    for name in store.destinations():
        stats, known = store.stats(top, name), name in configured
        if known or stats.in_outbox or stats.dead_letters:
            verdict = judge_destination(name, stats, fleet, max_age, configured=known)
            about = {"destination": name, "configured": known, "verdict": _verdict(verdict)}
            found.append({**about, **_numbers(stats), **_told(name, fleet)})
    return found


def _told(name: str, fleet: Fleet) -> dict[str, Any]:
    """What the relays at work tell about a destination, and its pause."""
    told, pause = told_about(name, fleet), fleet.pauses.get(name)
    return {
        "rate": round(rate_told(told), 2),
        "last_error": last_error_told(told) or None,
        "relays": [
            {
                "worker": each.worker,
                "state": each.state,
                "rate": each.rate,
                "last_error": each.last_error or None,
                "seen_seconds": each.seen_ago,
            }
            for each in told
        ],
        "pause": None if pause is None else asdict(pause),
    }


def _rates(rates: Mapping[str, Rate], turns: Mapping[str, float]) -> list[dict[str, Any]]:
    """Each release rate, and for how many seconds waiting messages have turns. One that is not
    configured any more is shown as long as messages have turns by it."""
    found = [
        {"pattern": name, "per_second": rate.per_second, "seconds": turns.get(name, 0.0)}
        for name, rate in rates.items()
    ]
    former = {name: seconds for name, seconds in turns.items() if seconds and name not in rates}
    return found + [
        {"pattern": name, "per_second": None, "seconds": seconds}
        for name, seconds in former.items()
    ]
