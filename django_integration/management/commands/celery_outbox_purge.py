"""`manage.py celery_outbox_purge`: old published rows and old dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

from celery_outbox_steps import operate
from django_integration.management.base import OutboxCommand

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(OutboxCommand):
    help = "Delete published rows and dead letters that are older than their retention."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--published-older-than",
            type=float,
            metavar="SECONDS",
            help="Default: CELERY_OUTBOX_RETENTION.",
        )
        parser.add_argument(
            "--dead-older-than",
            type=float,
            metavar="SECONDS",
            help="Default: CELERY_OUTBOX_DLQ_RETENTION.",
        )
        parser.add_argument("--task-name", help="Only dead letters of this task.")
        parser.add_argument("--dry-run", action="store_true", help="Only say what would be done.")

    def run(self, app: Any, options: dict[str, Any]) -> str:
        plan = operate.purge_plan(
            app, options["published_older_than"], options["dead_older_than"], options["task_name"]
        )
        if plan.is_empty:
            raise CommandError(
                "Nothing to purge: give --published-older-than or --dead-older-than, or set "
                "CELERY_OUTBOX_RETENTION or CELERY_OUTBOX_DLQ_RETENTION."
            )
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
