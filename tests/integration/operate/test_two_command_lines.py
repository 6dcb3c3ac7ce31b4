"""`celery outbox …` and the management commands side by side: same arguments, texts and output."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser
from contextlib import closing
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner
from django.core.management import CommandError, call_command

import django_integration.management.commands as package
from celery_outbox_steps.cli import outbox
from celery_outbox_steps.messages import Deferred
from django_integration.models import CeleryOutboxDeadLetter
from django_integration.store import DjangoStore

TWINS = {
    "status": "celery_outbox_stats",
    "scheduled": "celery_outbox_scheduled",
    "cancel": "celery_outbox_cancel",
    "send-now": "celery_outbox_send_now",
    "pause": "celery_outbox_pause",
    "resume": "celery_outbox_resume",
    "drain": "celery_outbox_drain",
    "dead": "celery_outbox_dead",
    "replay": "celery_outbox_replay_dead_letter",
    "discard": "celery_outbox_discard",
    "purge": "celery_outbox_purge",
}
RUNS = [
    ("status",),
    ("status", "--json"),
    ("status", "--format", "json", "--top", "1"),
    ("status", "--database", "default", "--json", "--top", "0"),
    ("pause",),
    ("pause", "--reason", "why", "--database", "default"),
    ("resume",),
    ("scheduled",),
    ("scheduled", "--json", "--limit", "1"),
    ("scheduled", "--task-name", "no.*"),
    ("drain",),
    ("drain", "--json"),
    ("drain", "--database", "default", "--database", "default"),
    ("dead",),
    ("dead", "--json", "--kind", "task"),
    ("dead", "--kind", "task"),
    ("dead", "--task-name", "no.*"),
    ("replay", "--all", "--dry-run"),
    ("replay", "--kind", "message", "--dry-run"),
    ("replay", "--all", "--dry-run", "--json"),
    ("replay", "--since", "2020-01-01", "--limit", "1", "--dry-run"),
    ("replay", "--until", "2020-01-01T10:00+09:00"),
    ("replay", "--task-name", "no.*", "--json"),
    ("purge",),
    ("purge", "--dead-older-than", "2w", "--dry-run"),
    ("purge", "--dead-older-than", "2w", "--published-older-than", "90"),
    ("purge", "--dead-older-than", "2w", "--task-name", "no.*", "--json"),
]
REFUSALS = [
    ("replay",),
    ("replay", "--since", "yesterday"),
    ("replay", "--all", "--limit", "0"),
    ("replay", "seven"),
    ("discard",),
    ("discard", "seven"),
    ("purge", "--dead-older-than", "soon"),
    ("status", "--format", "xml"),
    ("status", "--no-such-option"),
    ("cancel",),
    ("send-now", "--json"),
    ("scheduled", "--limit", "none"),
    ("dead", "--kind", "letter"),
    ("dead", "--limit", "0"),
]


def celery(app: Any, *arguments: str) -> Any:
    return CliRunner().invoke(outbox, arguments, obj=SimpleNamespace(app=app))


def manage(name: str, *arguments: str) -> str:
    out = StringIO()
    call_command(TWINS[name], *arguments, stdout=out)
    return out.getvalue()


def command_of(name: str) -> Any:
    return import_module(f"{package.__name__}.{TWINS[name]}").Command()


def of_click(param: click.Parameter) -> tuple[Any, ...]:
    if isinstance(param, click.Argument):
        return (param.name, None)
    assert isinstance(param, click.Option)
    return (*param.opts, param.help)


def of_argparse(action: Any) -> tuple[Any, ...]:
    return (*(action.option_strings or [action.dest]), action.help)


def test_every_command_has_a_twin() -> None:
    assert set(TWINS) == set(outbox.commands)
    scripts = Path(str(package.__file__)).parent.glob("celery_outbox_*.py")
    assert set(TWINS.values()) == {script.stem for script in scripts}


@pytest.mark.parametrize("name", TWINS)
def test_twins_have_the_same_arguments_and_help(name: str) -> None:
    command, parser = command_of(name), ArgumentParser(add_help=False)
    command.add_arguments(parser)
    known = [of_click(param) for param in outbox.commands[name].params if param.name != "help"]
    assert [of_argparse(action) for action in parser._actions] == known
    assert command.help == outbox.commands[name].help
    assert all(text for *_, text in known if text is not None)


@pytest.mark.parametrize("name", TWINS)
def test_twins_have_the_same_defaults(name: str) -> None:
    command, parser = command_of(name), ArgumentParser(add_help=False)
    command.add_arguments(parser)
    needed = ["17" for param in outbox.commands[name].params if param.required]
    of_twin = outbox.commands[name].make_context(name, list(needed)).params
    given = vars(parser.parse_args(needed))
    of_twin = {
        key: list(each) if isinstance(each, tuple) else each for key, each in of_twin.items()
    }
    assert {key: value or None for key, value in given.items()} == {
        key: value or None for key, value in of_twin.items()
    }


@pytest.mark.parametrize("arguments", RUNS, ids=" ".join)
def test_twins_print_the_same(app: Any, bury: Any, arguments: tuple[str, ...]) -> None:
    bury(2)
    name, *rest = arguments
    one, other = celery(app, *arguments), manage(name, *rest)
    assert one.exit_code == 0, one.output
    assert other == one.output
    assert ("--json" not in rest) or json.loads(other) is not None
    assert CeleryOutboxDeadLetter.objects.count() == 2


def test_the_list_of_what_is_scheduled_shows_arguments_and_says_if_there_is_more(app: Any) -> None:
    for number in range(3):
        app.send_task("some.where", [number], {"by": "x" * 300}, countdown=60 + number)
    two = celery(app, "scheduled", "--limit", "2")
    assert [line.split("some.where ")[1][:3] for line in two.stdout.splitlines()] == ["[0]", "[1]"]
    assert two.stderr == "There are more than these 2: use a larger --limit.\n"
    three = celery(app, "scheduled", "--limit", "3", "--json")
    assert [(len(each["args"]), len(each["kwargs"])) for each in json.loads(three.stdout)] == [
        (3, 200)
    ] * 3
    assert three.stderr == ""
    assert "wildcards" in celery(app, "scheduled", "--task-name", "where").stdout


@pytest.mark.parametrize("name", ["cancel", "send-now"])
def test_twins_change_what_waits_and_fail_for_what_does_not(app: Any, name: str) -> None:
    ids = [app.send_task("some.where", countdown=60).id for _ in range(2)]
    one = celery(app, name, ids[0], "gone", "--json")
    assert one.exit_code == 1
    done = "cancelled" if name == "cancel" else "due_now"
    assert json.loads(one.output) == {ids[0]: done, "gone": "not_waiting"}
    assert celery(app, "scheduled", "--json").output.count("some.where") == 1
    with pytest.raises(SystemExit):
        manage(name, "gone")
    assert ids[1] in manage(name, ids[1])
    assert celery(app, "scheduled").output == "nothing is scheduled\n"


def test_a_cancelled_call_that_was_attempted_may_have_left(app: Any) -> None:
    task_id = app.send_task("some.where").id
    with closing(DjangoStore("default")) as store:
        (message,) = store.claim(1, 60, "relay")
        store.settle([Deferred(message, "interrupted", 60)], "relay")
    cancelled = celery(app, "cancel", task_id)
    assert cancelled.exit_code == 0
    assert "may have left" in cancelled.output


@pytest.mark.parametrize("arguments", REFUSALS, ids=" ".join)
def test_twins_refuse_the_same(app: Any, arguments: tuple[str, ...]) -> None:
    name, *rest = arguments
    assert celery(app, *arguments).exit_code == 2
    with pytest.raises(CommandError):
        manage(name, *rest)


@pytest.mark.parametrize("arguments", REFUSALS[:3], ids=" ".join)
def test_a_refusal_says_the_same(app: Any, arguments: tuple[str, ...]) -> None:
    name, *rest = arguments
    said = " ".join(celery(app, *arguments).output.split())
    with pytest.raises(CommandError) as refused:
        manage(name, *rest)
    reason = re.sub(r"^Error: argument --\w+: ", "", str(refused.value))
    assert reason in said


@pytest.mark.parametrize("seconds", [(), ("0.5",)], ids=["by default", "given"])
@pytest.mark.parametrize("line", ["celery", "manage"])
def test_watch_repeats_until_interrupted(
    app: Any, monkeypatch: pytest.MonkeyPatch, line: str, seconds: tuple[str, ...]
) -> None:
    pauses: list[float] = []

    def interrupted(pause: float) -> None:
        pauses.append(pause)
        if len(pauses) >= 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("celery_outbox_steps.cli.time.sleep", interrupted)
    arguments = ("status", "--watch", *seconds)
    said = celery(app, *arguments).output if line == "celery" else manage(*arguments)
    assert said.count("database default") == 2
    assert pauses == [float(seconds[0] if seconds else 2)] * 2
