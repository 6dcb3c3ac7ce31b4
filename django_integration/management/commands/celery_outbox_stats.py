"""`manage.py celery_outbox_stats`: what waits, what fails and who holds it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from celery_outbox_steps import operate
from celery_outbox_steps.cli import describe
from django_integration.management.base import OutboxCommand

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(OutboxCommand):
    help = "Show waiting and failing rows, and the relays that hold rows."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--format", choices=["text", "json"], default="text")
        parser.add_argument("--top", type=int, default=10, help="How many failing tasks to name.")
        parser.add_argument(
            "--watch",
            type=float,
            metavar="SECONDS",
            nargs="?",
            const=2.0,
            help="Repeat at this interval until interrupted.",
        )

    def run(self, app: Any, options: dict[str, Any]) -> None:
        self._show(app, options)
        try:
            while options["watch"]:
                time.sleep(options["watch"])
                self.stdout.write("")
                self._show(app, options)
        except KeyboardInterrupt:
            pass

    def _show(self, app: Any, options: dict[str, Any]) -> None:
        found = operate.status(app, options["top"])
        if options["format"] == "json":
            self.stdout.write(json.dumps(found, default=str))
        else:
            self.stdout.write("\n\n".join(describe(each) for each in found))
        self.stdout.flush()
