"""The arguments of the outbox commands, defined once: names, types, help and errors.

`cli.py` attaches them to `celery outbox …`, and the management commands take theirs from `cli.py`:
both accept the same arguments, with the same meaning. The parsers raise a ValueError that says what
is allowed.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

CHOOSE = (
    "Specify which dead letters: ids, --task-name, --kind, --destination, --since, --until or"
    " --all."
)
WATCH_SECONDS = 2.0
KINDS = ("message", "task")
"""Those of `celery_outbox_steps.store`, which every `celery` command would have to import here."""

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def moment(text: str) -> datetime:
    """A point in time in ISO 8601. Without a zone it is UTC, not local time or Django's zone."""
    try:
        found = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text.strip()))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: write 2026-11-01, 2026-11-01T14:30 or, with a zone, "
            "2026-11-01T14:30+09:00. Without a zone it is UTC."
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def age(text: str) -> float:
    """An age in seconds: a number of seconds, or a number with a unit, like 15m, 12h, 30d."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not an age: write seconds, or 90s, 15m, 12h, 30d, 2w.")
    return float(found[1]) * _SECONDS[found[2]]


def interval(text: str) -> float:
    """A number of seconds above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"{text!r} is not a number of seconds above 0")
    return seconds


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def destination_name(text: str) -> str:
    """A name that is not empty: an empty one from a script must not mean the whole outbox."""
    if not text.strip():
        raise ValueError("name a destination, or leave the argument out for the whole outbox")
    return text


def seconds_since(when: datetime | None) -> float | None:
    """The age of a moment in seconds. A Store takes ages and compares them by its own clock."""
    return None if when is None else (datetime.now(timezone.utc) - when).total_seconds()


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5
    """A click type from a parser; click itself does not show the text of a ValueError."""

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self.name = parse.__name__
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


def _list_limit(first: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """How long a list may be, and what it begins with."""
    return click.option(
        "--limit",
        type=Parsed(count),
        default="100",
        metavar="COUNT",
        help=f"At most this many, {first} first. Default: 100.",
    )


DATABASES = click.option(
    "--database",
    "databases",
    multiple=True,
    metavar="ALIAS",
    help="Only the outbox in this database. May be repeated. Default: every database that has one.",
)


def _destination(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option("--destination", metavar="NAME", help=f"Only {what} for this destination.")


DEAD_DESTINATION = _destination("dead letters")
SCHEDULED_DESTINATION = _destination("messages")
DRAIN_DESTINATION = click.option(
    "--destination",
    metavar="NAME",
    help="Only the messages for this destination, also if it is paused.",
)
PAUSED_DESTINATION = click.argument("destination", required=False, type=Parsed(destination_name))
REASON = click.option("--reason", metavar="TEXT", help="Why, for everybody who looks.")
IDS = click.argument("ids", nargs=-1, type=int)
DEAD_IDS = click.argument("ids", nargs=-1, type=int, required=True)
TASK_IDS = click.argument("task_ids", nargs=-1, required=True)
TASK_NAME = click.option(
    "--task-name", metavar="NAME", help="Only dead letters of this task. * and ? are wildcards."
)
KIND = click.option(
    "--kind",
    type=click.Choice(KINDS),
    metavar="KIND",
    help="Only dead letters of this kind: message (it could not be published) or task (it failed in"
    " a worker).",
)
DEAD_LIMIT = _list_limit("the newest")
SCHEDULED_TASK = click.option(
    "--task-name", metavar="PATTERN", help="Only calls of this task. * and ? are wildcards."
)
SCHEDULED_LIMIT = _list_limit("the next one")
SINCE = click.option(
    "--since",
    type=Parsed(moment),
    metavar="TIME",
    help="Only dead letters that died at or after this time (ISO 8601, UTC unless it has a zone).",
)
UNTIL = click.option(
    "--until",
    type=Parsed(moment),
    metavar="TIME",
    help="Only dead letters that died before this time (ISO 8601, UTC unless it has a zone).",
)
ALL = click.option("--all", "everything", is_flag=True, help="Every dead letter.")
LIMIT = click.option(
    "--limit", type=Parsed(count), metavar="COUNT", help="At most this many, oldest first."
)
PUBLISHED_OLDER_THAN = click.option(
    "--published-older-than",
    type=Parsed(age),
    metavar="AGE",
    help="Delete published rows older than this: seconds, or 12h, 30d, 2w."
    " Default: CELERY_OUTBOX_RETENTION.",
)
DEAD_OLDER_THAN = click.option(
    "--dead-older-than",
    type=Parsed(age),
    metavar="AGE",
    help="Delete dead letters older than this: seconds, or 12h, 30d, 2w."
    " Default: CELERY_OUTBOX_DLQ_RETENTION.",
)
DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Print what would be done, and change nothing."
)
MAX_AGE = click.option(
    "--max-age",
    type=Parsed(age),
    metavar="SECONDS",
    help="Exit with status 1 if a message has been due for longer than this, whatever the reason:"
    " seconds, or 90s, 15m. Without it the exit status is 0, and 60 seconds count as late.",
)
TOP = click.option(
    "--top", type=int, default=10, metavar="COUNT", help="Number of failing tasks to list."
)
WATCH = click.option(
    "--watch",
    type=Parsed(interval),
    is_flag=False,
    flag_value=WATCH_SECONDS,
    metavar="SECONDS",
    help="Repeat at this interval until interrupted; without a value every 2 seconds.",
)
FORMAT = click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Text for people, or one JSON document.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
