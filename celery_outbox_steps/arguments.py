"""What people type for times and ages, and its help: the same in `celery outbox` and `manage.py`.

Errors are ValueErrors that say what works; each command line shows them in its own way.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone

HELP = {
    "task_name": "Only dead letters of this task. * and ? are wildcards.",
    "since": "Only those that became dead letters at or after this time; UTC without a zone.",
    "until": "Only those that became dead letters before this time; UTC without a zone.",
    "limit": "At most this many, the oldest first.",
    "all": "Every dead letter.",
    "dry_run": "Change nothing; show what would be done.",
    "published_older_than": "Seconds, or e.g. 12h, 30d, 2w. Default: CELERY_OUTBOX_RETENTION.",
    "dead_older_than": "Seconds, or e.g. 12h, 30d, 2w. Default: CELERY_OUTBOX_DLQ_RETENTION.",
}
CHOOSE = "Say which dead letters: ids, --task-name, --since, --until or --all."
NOTHING_TO_PURGE = (
    "Nothing to purge: give --published-older-than or --dead-older-than, or set "
    "CELERY_OUTBOX_RETENTION or CELERY_OUTBOX_DLQ_RETENTION."
)

AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)")
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def moment(text: str) -> datetime:
    """A point in time in ISO 8601. Without a zone it is UTC, wherever it is typed."""
    try:
        found = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text.strip()))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: write 2026-11-01, 2026-11-01T14:30 or, with a zone, "
            "2026-11-01T14:30+09:00. Without a zone it is UTC."
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def age(text: str) -> float:
    """An age in seconds: a number of them, or with a unit, like 90s, 15m, 12h, 30d, 2w."""
    found = AGE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not an age: write seconds, or 90s, 15m, 12h, 30d, 2w.")
    return float(found[1]) * SECONDS[found[2]]


def seconds_since(when: datetime | None) -> float | None:
    """How long ago that was; ages are what a Store asks its own clock about."""
    return None if when is None else (datetime.now(timezone.utc) - when).total_seconds()
