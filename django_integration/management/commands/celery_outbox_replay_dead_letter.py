"""`manage.py celery_outbox_replay_dead_letter`: dead letters back into the outbox."""

from __future__ import annotations

from datetime import datetime, time
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from celery_outbox_steps import operate
from celery_outbox_steps.store import DeadLetters
from django_integration.management.base import OutboxCommand

if TYPE_CHECKING:
    from argparse import ArgumentParser


def moment(text: str) -> datetime:
    """A point in time; without a zone it is in the project's TIME_ZONE."""
    day = parse_date(text)
    found = datetime.combine(day, time.min) if day else parse_datetime(text)
    if found is None:
        raise ValueError(text)
    return timezone.make_aware(found) if timezone.is_naive(found) else found


class Command(OutboxCommand):
    help = "Move dead letters back into the outbox: by id, by task name, by time, or --all."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("ids", nargs="*", type=int)
        parser.add_argument("--task-name", help="Only dead letters of this task.")
        parser.add_argument("--since", type=moment, help="Only those that died at or after this.")
        parser.add_argument("--until", type=moment, help="Only those that died before this.")
        parser.add_argument("--all", action="store_true", help="Every dead letter.")
        parser.add_argument("--dry-run", action="store_true", help="Only say what would be done.")

    def run(self, app: Any, options: dict[str, Any]) -> str:
        if not any(options[name] for name in ("ids", "task_name", "since", "until", "all")):
            raise CommandError(
                "Say which dead letters: ids, --task-name, --since, --until or --all."
            )
        which = DeadLetters(
            tuple(options["ids"]) or None,
            options["task_name"],
            older_than=_ago(options["until"]),
            newer_than=_ago(options["since"]),
        )
        count = operate.count_dead_letters(app, which)
        if options["dry_run"]:
            return f"{count} dead letters would be replayed"
        count = self.with_bar("Replaying", count, lambda on: operate.replay(app, which, on))
        return f"{count} dead letters replayed"


def _ago(moment: datetime | None) -> float | None:
    return None if moment is None else (datetime.now(moment.tzinfo) - moment).total_seconds()
