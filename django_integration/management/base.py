"""`celery outbox …` as management commands: same arguments, same code, same output.

A management command names a click command in `celery_outbox_steps.cli`. Its arguments are derived
from those of the click command, for argparse; their values are passed to the click command's code.
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
from django.core.management.base import BaseCommand, CommandError

from celery_outbox_steps.cli import STDOUT
from celery_outbox_steps.errors import OutboxError
from django_integration.conf import celery_app

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable


class OutboxCommand(BaseCommand):
    """Runs `command`, and turns its errors into one line and an exit status."""

    requires_system_checks: Any = []  # a failing check must not stop an operator
    command: click.Command

    def add_arguments(self, parser: ArgumentParser) -> None:
        for param in self.command.params:
            names, arguments = _for_argparse(param)
            parser.add_argument(*names, **arguments)

    def handle(self, *_: Any, **options: Any) -> None:
        self.stdout.ending = ""  # click ends its own lines, except for a progress bar
        values = {str(param.name): _value(param, options) for param in self.command.params}
        try:
            with click.Context(self.command, obj=SimpleNamespace(app=celery_app())) as context:
                context.meta[STDOUT] = self.stdout
                context.invoke(self.command, **values)
        except click.exceptions.Exit as exc:  # a status without a message
            sys.exit(exc.exit_code)
        except OutboxError as exc:
            raise CommandError(str(exc)) from exc
        except click.ClickException as exc:
            raise CommandError(exc.message) from exc


def _value(param: click.Parameter, options: dict[str, Any]) -> Any:
    """The value of an argument as click has it."""
    value = options[str(param.name)]
    return tuple(value or ()) if param.multiple else value


def _for_argparse(param: click.Parameter) -> tuple[list[str], dict[str, Any]]:
    """The names and keyword arguments of `add_argument()` for an argument of click."""
    if not isinstance(param, click.Option):
        nargs = "+" if param.required else "*" if param.nargs == -1 else "?"
        return [str(param.name)], {"nargs": nargs, "type": _converter(param)}
    arguments: dict[str, Any] = {"dest": param.name, "help": param.help}
    if param.is_flag:
        return param.opts, {**arguments, "action": "store_true"}
    if param.multiple:
        arguments["action"] = "append"
    if isinstance(param.default, (int, str)):  # click's marker for "no default" is neither
        arguments["default"] = param.default
    if isinstance(param.type, click.Choice):
        return param.opts, {**arguments, "choices": list(param.type.choices)}
    if isinstance(param.flag_value, float):  # the option may stand without a value
        arguments |= {"nargs": "?", "const": param.flag_value}
    return param.opts, {**arguments, "metavar": param.metavar, "type": _converter(param)}


def _converter(param: click.Parameter) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return param.type.convert(text, param, None)
        except click.BadParameter as exc:
            raise ArgumentTypeError(exc.message) from exc

    return convert
