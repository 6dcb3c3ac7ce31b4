"""`manage.py celery_outbox_purge`: old published rows and old dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

from celery_outbox_steps import operate
from celery_outbox_steps.arguments import HELP, NOTHING_TO_PURGE, age
from django_integration.management.base import OutboxCommand, parsed

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(OutboxCommand):
    help = "Delete published rows and dead letters that are older than their retention."

    def add_arguments(self, parser: ArgumentParser) -> None:
        for name in ("published_older_than", "dead_older_than"):
            flag = f"--{name.replace('_', '-')}"
            parser.add_argument(flag, type=parsed(age), metavar="AGE", help=HELP[name])
        parser.add_argument("--task-name", metavar="NAME", help=HELP["task_name"])
        parser.add_argument("--dry-run", action="store_true", help=HELP["dry_run"])

    def run(self, app: Any, options: dict[str, Any]) -> str:
        plan = operate.purge_plan(
            app, options["published_older_than"], options["dead_older_than"], options["task_name"]
        )
        if plan.is_empty:
            raise CommandError(NOTHING_TO_PURGE)
        counts, words = operate.count_purgeable(app, plan), "would be deleted"
        if not options["dry_run"]:
            counts, words = (
                self.with_bar(
                    "Purging", sum(counts.values()), lambda on: operate.purge(app, plan, on)
                ),
                "deleted",
            )
        return (
            f"{counts['published']} published rows and {counts['dead_letters']} "
            f"dead letters {words}"
        )
