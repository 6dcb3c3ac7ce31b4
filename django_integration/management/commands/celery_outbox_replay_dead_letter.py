"""`manage.py celery_outbox_replay_dead_letter`: dead letters back into the outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

from celery_outbox_steps import operate
from celery_outbox_steps.arguments import CHOOSE, HELP, moment, seconds_since
from celery_outbox_steps.store import DeadLetters
from django_integration.management.base import OutboxCommand, count, parsed

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(OutboxCommand):
    help = "Move dead letters back into the outbox: by id, by task name, by time, or --all."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("ids", nargs="*", type=int)
        parser.add_argument("--task-name", metavar="NAME", help=HELP["task_name"])
        for name in ("since", "until"):
            parser.add_argument(f"--{name}", type=parsed(moment), metavar="TIME", help=HELP[name])
        parser.add_argument("--all", action="store_true", help=HELP["all"])
        parser.add_argument("--limit", type=parsed(count), metavar="COUNT", help=HELP["limit"])
        parser.add_argument("--dry-run", action="store_true", help=HELP["dry_run"])

    def run(self, app: Any, options: dict[str, Any]) -> str:
        if not any(options[name] for name in ("ids", "task_name", "since", "until", "all")):
            raise CommandError(CHOOSE)
        which, limit = _chosen(options), options["limit"]
        count = operate.count_dead_letters(app, which, limit)
        if options["dry_run"]:
            return f"{count} dead letters would be replayed"
        done = self.with_bar("Replaying", count, lambda on: operate.replay(app, which, on, limit))
        return f"{done} dead letters replayed"


def _chosen(options: dict[str, Any]) -> DeadLetters:
    return DeadLetters(
        tuple(options["ids"]) or None,
        options["task_name"],
        older_than=seconds_since(options["until"]),
        newer_than=seconds_since(options["since"]),
    )
