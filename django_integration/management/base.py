"""What the management commands share: the app they mean, progress bars, and plain errors."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any, TextIO, cast

import click
from django.core.management.base import BaseCommand, CommandError

from celery_outbox_steps.errors import OutboxError
from django_integration.conf import celery_app

if TYPE_CHECKING:
    from collections.abc import Callable


def parsed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """For argparse, which shows the text of no other error."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as exc:
            raise ArgumentTypeError(str(exc)) from exc

    return convert


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number of at least 1")
    return int(text)


class OutboxCommand(BaseCommand):
    """Turns an `OutboxError` into one line and an exit status. Subclasses implement `run`."""

    requires_system_checks: Any = []  # an operator at 3 a.m. must not be stopped by a lint

    def handle(self, *_: Any, **options: Any) -> str | None:
        try:
            return self.run(celery_app(), options)
        except OutboxError as exc:
            raise CommandError(str(exc)) from exc

    def run(self, app: Any, options: dict[str, Any]) -> str | None:
        raise NotImplementedError

    def with_bar(
        self, label: str, length: int, work: Callable[[Callable[[int], None]], Any]
    ) -> Any:
        """Run with a progress bar where a person waits."""
        with click.progressbar(length=length, label=label, file=cast("TextIO", self.stdout)) as bar:
            return work(bar.update)
