"""The status of an outbox, what is scheduled and what is dead, as text for people.

Pure: takes what `status` and `operate` return, which `--json` prints as it is. Part of `cli.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.fleet import STANDING_BY, STOPPED
from celery_outbox_steps.health import age, first_line, paused_text
from celery_outbox_steps.rates import in_units

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_outbox_steps.fleet import Pause

LISTED, LISTED_DEAD = 3, 10
"""Relays that stand by, or died, are summed up in one line if there are more."""
LOWEST_RATE = 0.05
COUNTS = {
    "in the outbox": "in_outbox",
    "waiting": "waiting",
    "scheduled": "scheduled",
    "in flight": "in_flight",
    "backing off": "backing_off",
    "failing": "failing",
    "dead letters": "dead_letters",
    "failed tasks": "failed_tasks",
    "kept": "published",
}

COLUMNS = {
    "waiting": "waiting",
    "scheduled": "scheduled",
    "in flight": "in_flight",
    "backing off": "backing_off",
    "held back": "held_back",
    "dead letters": "dead_letters",
}
"""Of the table of destinations."""
ARGUMENTS = 60
"""Characters of the arguments of a call."""
FATES = {
    "due_now": "due now",
    "cancelled": "cancelled",
    "may_have_left": "cancelled, but its message may have left before; "
    "`celery control revoke` tells the workers to drop it",
    "not_waiting": "not in the outbox, or claimed by a relay",
}
"""What became of a call that an operator changed."""


def status_text(found: dict[str, Any]) -> str:
    """The outbox of one database."""
    more, destinations = "+" if found["capped"] else "", found["destinations"]
    lines = [
        *((name, f"{found[field]}{more}") for name, field in COUNTS.items()),
        ("oldest due", age(found["oldest_due_seconds"]) if _has_due(found) else "-"),
        *_relays(found["relays"]),
        *(("held by", _held(each, found["relays"])) for each in found["holders"]),
        *(("failing task", _failing(each)) for each in found["top_failing"]),
        *(("release rate", _rate(each)) for each in found["rates"]),
    ]
    head = [f"database {found['database']}", f"  {found['verdict']['text']}"]
    head += [f"  destination {_name(each)}: {each['verdict']['text']}" for each in destinations]
    body = [f"  {name:<14} {text}" for name, text in lines]
    return "\n".join([*head, *body, *(_destinations(destinations) if destinations else ())])


def scheduled_text(
    found: list[dict[str, Any]], task_name: str | None, destination: str | None = None
) -> str:
    """A line per call that is not due yet."""
    if not found:
        return f"nothing is scheduled{_wanted('for', task_name, destination)}"
    several = len({call["database"] for call in found}) > 1
    left = [f"in {age(call['seconds'])}" for call in found]
    width = max(map(len, left))
    return "\n".join(
        f"{call['due_at'][:19]}Z  {until:<{width}}  {call['task_id']}  {_call(call)}"
        f"{_where(call, several=several)}"
        for call, until in zip(found, left, strict=True)
    )


def dead_text(
    found: list[dict[str, Any]], task_name: str | None, destination: str | None = None
) -> str:
    """A line per dead letter, and below it the reason."""
    if not found:
        return f"no dead letters{_wanted('of', task_name, destination)}"
    several = len({letter["database"] for letter in found}) > 1
    lines = []
    for letter in found:
        where = _where(letter, several=several)
        task = f"{letter['task_name']}[{letter['task_id']}]"
        ago = f"{letter['dead_at'][:19]}Z  {age(letter['seconds'])} ago"
        lines.append(f"{letter['id']}  {letter['kind']}  {ago}  {task}{where}")
        lines.append(f"    {first_line(letter['failure_reason'])}")
    return "\n".join(lines)


def paused_lines(pauses: Mapping[str, Pause]) -> list[str]:
    """The destinations that are paused by their names."""
    return [
        f"Destination {name} is {paused_text(pause)}. Its pause ends with: celery -A proj outbox"
        f" resume {name}"
        for name, pause in sorted(pauses.items())
    ]


def _wanted(word: str, task_name: str | None, destination: str | None) -> str:
    """What a list that is empty was asked for."""
    to = f" to {destination}" if destination else ""
    return f"{to} {word} {task_name}; * and ? are wildcards" if task_name else to


def _where(row: dict[str, Any], *, several: bool) -> str:
    """The destination that a row is for, and its database if there are several."""
    destination = row.get("destination")
    to = f"  to {destination}" if destination else ""
    return f"{to}  ({row['database']})" if several else to


def _name(destination: dict[str, Any]) -> str:
    name: str = destination["destination"]
    return name


def _destinations(destinations: list[dict[str, Any]]) -> list[str]:
    """A table with a row for each, and what is behind its numbers."""
    titles = ["destination", *COLUMNS, "oldest due", "msg/s"]
    rows = [titles, *map(_cells, destinations)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(_aligned(row, widths)) for row in rows]
    lines += [line for each in destinations for line in _details(each)]
    return ["", *(f"  {line}".rstrip() for line in lines)]


def _cells(found: dict[str, Any]) -> list[str]:
    more = "+" if found["capped"] else ""
    due = age(found["oldest_due_seconds"]) if _has_due(found) else "-"
    counts = [f"{found[field]}{more}" for field in COLUMNS.values()]
    return [_name(found), *counts, due, f"{found['rate']:.1f}"]


def _aligned(row: list[str], widths: list[int]) -> list[str]:
    first, *others = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]


def _details(found: dict[str, Any]) -> list[str]:
    name, error = _name(found), found["last_error"]
    lines = [f"last error     {name}: {error}"] if error else []
    lines += [f"failing        {name}: {_failing(each)}" for each in found["top_failing"]]
    if found["held_back"]:
        lines.append(f"held back      {name}: each is sent after the one before it of its key")
    return lines


def _rate(found: dict[str, Any]) -> str:
    seconds = found["seconds"]
    turns = f"waiting messages have turns for {age(math.ceil(seconds))}"
    speed = "not configured any more" if found["per_second"] is None else _per(found["per_second"])
    return f"{found['pattern']}: {speed}, {turns if seconds else 'no message waits for its turn'}"


def _per(per_second: float) -> str:
    """A rate as the setting has it."""
    number, unit = in_units(per_second)
    return f"{number:.6g}/{unit}"


def _call(call: dict[str, Any]) -> str:
    """The task and its arguments, if it has any, shortened."""
    given = [text for text in (call["args"], call["kwargs"]) if text not in ("[]", "{}")]
    return " ".join([call["task_name"], *map(_shortened, given)])


def _shortened(text: str) -> str:
    return text if len(text) <= ARGUMENTS else f"{text[: ARGUMENTS - 1]}…"


def counted(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def _has_due(found: dict[str, Any]) -> bool:
    return bool(found["waiting"] or found["in_flight"])


def _relays(relays: list[dict[str, Any]]) -> list[tuple[str, str]]:
    alive = [each for each in relays if each["alive"]]
    standbys = [each for each in alive if each["state"] == STANDING_BY]
    working = [each for each in alive if each["state"] != STANDING_BY]
    dead = [each for each in relays if not each["alive"] and each["state"] != STOPPED]
    stopped = [each for each in relays if not each["alive"] and each["state"] == STOPPED]
    return [
        *(("relay", _relay(each)) for each in working),
        *_summed_up("standing by", standbys),
        *_summed_up("gone", dead, LISTED_DEAD),
        *_summed_up("stopped", stopped, 0),
    ]


def _summed_up(
    name: str, relays: list[dict[str, Any]], listed: int = LISTED
) -> list[tuple[str, str]]:
    if len(relays) <= listed:
        return [(name, _relay(each)) for each in relays]
    seen = age(min(each["seen_seconds"] for each in relays))
    return [(name, f"{counted(len(relays), 'relay')}, the last one seen {seen} ago")]


def _relay(relay: dict[str, Any]) -> str:
    error = first_line(relay["last_error"])
    doing = _doing(relay)
    said = f"{relay['worker']}: {doing}{', ' if doing else ''}seen {age(relay['seen_seconds'])} ago"
    return f"{said}, last error: {error}" if error else said


def _doing(relay: dict[str, Any]) -> str:
    state: str = relay["state"]
    if not relay["alive"]:
        return f"was {state}"
    if state == STANDING_BY:
        return ""
    slot = "" if relay["slot"] is None else f", slot {relay['slot']}"
    minute = f", {relay['rate']:.1f} messages/s in the last minute"
    rate = minute if relay["rate"] >= LOWEST_RATE else ""
    return f"{state}{slot}{rate}"


def _held(holder: dict[str, Any], relays: list[dict[str, Any]]) -> str:
    left = age(holder["seconds_left"])
    worker = {each["relay"]: each["worker"] for each in relays}.get(holder["relay"])
    rows = counted(holder["rows"], "row")
    return f"{worker or holder['relay']}: {rows}, lease ends in {left}"


def _failing(task: dict[str, Any]) -> str:
    return f"{task['task_name']}: {counted(task['rows'], 'row')}, {task['last_error']}"
