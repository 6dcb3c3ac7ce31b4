"""Writes the generated parts of the reference, from the tables in the code.

    python docs/generate.py          # rewrite them
    python docs/generate.py --check  # exit status 1 where one is out of date

A page keeps its prose; what stands between its two `generated` comments is replaced.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

REFERENCE = Path(__file__).resolve().parent / "reference"
MARK = re.compile(r"(<!-- generated:(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
MANAGEMENT = Path("django_integration/management/commands")
NEVER_SHOWN = {"help", "version"}


def settings() -> str:
    from celery_outbox_steps.settings import SETTINGS

    rows = ["| setting | flag | default | meaning |", "|---|---|---|---|"]
    for each in sorted(SETTINGS, key=lambda setting: setting.name):
        flag = f"`{each.flag_name}`" if each.flag else ""
        meaning = f"{each.help} Must be {each.kind.words}."
        rows.append(f"| `{each.django_name}` | {flag} | `{each.default!r}` | {_cell(meaning)} |")
    return "\n".join(rows)


def metrics() -> str:
    from celery_outbox_steps.observe.metrics import METRICS

    rows = [
        "| DogStatsD, your sink | Prometheus | kind | tags | meaning |",
        "|---|---|---|---|---|",
    ]
    for name, metric in METRICS.items():
        names = [name if metric.pushed else "", metric.prometheus]
        cells = [*(f"`{each}`" if each else "" for each in names), metric.kind]
        cells += [_names(metric.tags), _cell(metric.help)]
        rows.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(rows)


def log_events() -> str:
    from celery_outbox_steps.observe.log import SECTIONS

    return "\n\n".join(f"## {title}\n\n{_events(events)}" for title, events in SECTIONS.items())


def _events(events: dict[str, Any]) -> str:
    rows = [
        "| event | level | fields | what it means, and what happens next |",
        "|---|---|---|---|",
    ]
    for name, event in events.items():
        levels = [logging.getLevelName(each) for each in (event.level, event.also) if each]
        cells = [f"`{name}`", ", ".join(levels), _names(event.fields), _cell(event.meaning)]
        rows.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(rows)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def commands() -> str:
    from celery_outbox_steps.cli import outbox

    with click.Context(outbox) as context:
        names = outbox.list_commands(context)
        found = [outbox.get_command(context, name) for name in names]
    return "\n\n".join(_click_command(each) for each in found)


def control() -> str:
    from celery.worker.control import Panel

    import celery_outbox_steps.worker.control  # noqa: F401  registers its commands

    rows = ["| command | what it does |", "|---|---|"]
    for name, meta in sorted(Panel.meta.items()):
        if "outbox" in name and meta.visible:
            arguments = f" {meta.signature}" if meta.signature else ""
            rows.append(f"| `celery -A proj {meta.type} {name}{arguments}` | {meta.help} |")
    return "\n".join(rows)


def management() -> str:
    root = REFERENCE.parents[1] / MANAGEMENT
    names = sorted(path.stem for path in root.glob("celery_outbox_*.py"))
    return "\n\n".join(_management_command(name) for name in names)


def sql() -> str:
    titles = {"postgresql": "PostgreSQL", "mysql": "MySQL 8 and MariaDB", "sqlite": "SQLite"}
    texts = {name: (REFERENCE / "sql" / f"{name}.sql").read_text() for name in titles}
    sections = (f"## {titles[name]}\n\n```sql\n{texts[name]}```" for name in titles)
    return "\n\n".join(sections)


def _click_command(command: click.Command) -> str:
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    named = [f"[{p.name}{'...' if p.nargs == -1 else ''}]" for p in arguments]
    usage = " ".join(["celery -A proj outbox", str(command.name), *named])
    rows = [
        (", ".join(option.opts), option.metavar, option.help or "")
        for option in command.params
        if isinstance(option, click.Option) and option.name not in NEVER_SHOWN
    ]
    return _section(usage, str(command.help), rows)


def _management_command(name: str) -> str:
    command = import_module(f"django_integration.management.commands.{name}").Command()
    parser = argparse.ArgumentParser(prog=f"python manage.py {name}", add_help=False)
    command.add_arguments(parser)
    rows, arguments = [], []
    for action in parser._actions:  # noqa: SLF001  argparse has no public list of its arguments
        if action.option_strings:
            metavar = action.metavar or ("/".join(action.choices) if action.choices else None)
            rows.append((", ".join(action.option_strings), metavar, action.help or ""))
        else:
            arguments.append(f"[{action.dest}{'' if action.nargs == '?' else '...'}]")
    return _section(" ".join([parser.prog, *arguments]), command.help, rows)


def _section(usage: str, text: str, rows: list[tuple[str, Any, str]]) -> str:
    words = " ".join(text.split())
    if not rows:
        return f"### `{usage}`\n\n{words}"
    table = ["| option | meaning |", "|---|---|"]
    for names, metavar, meaning in rows:
        shown = f"{names} {metavar}" if metavar else names
        table.append(f"| `{shown}` | {_cell(meaning)} |".replace("|  |", "| |"))
    return f"### `{usage}`\n\n{words}\n\n" + "\n".join(table)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PARTS = {
    "settings": settings,
    "metrics": metrics,
    "log_events": log_events,
    "commands": commands,
    "control": control,
    "management": management,
    "sql": sql,
}


def regenerated(page: Path) -> str:
    """The page with its generated parts made anew."""
    return MARK.sub(lambda m: f"{m[1]}\n{PARTS[m[2]]()}\n\n{m[3]}", page.read_text())


def main() -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.proj.settings")
    check = "--check" in sys.argv[1:]
    stale = [
        page for page in sorted(REFERENCE.glob("*.md")) if regenerated(page) != page.read_text()
    ]
    for page in stale:
        print(f"{'out of date' if check else 'written'}: {page.name}")  # noqa: T201
        if not check:
            page.write_text(regenerated(page))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
