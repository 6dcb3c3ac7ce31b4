"""`celery -A proj outbox status | drain | replay | purge`.

Loaded by every `celery` command through the entry point `celery.commands`, so it imports nothing
heavy before one of its own commands runs. The work is done in `celery_outbox_steps.operate`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_outbox_steps.arguments import (
    CHOOSE,
    HELP,
    NOTHING_TO_PURGE,
    age,
    moment,
    seconds_since,
)
from celery_outbox_steps.errors import OutboxError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime


class OutboxCommand(CeleryCommand):  # type: ignore[misc]
    """Turns what the outbox can't do into one line and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OutboxError as exc:
            raise click.ClickException(str(exc)) from exc


AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
DRY_RUN = click.option("--dry-run", is_flag=True, help=HELP["dry_run"])
TASK_NAME = click.option("--task-name", metavar="NAME", help=HELP["task_name"])


def parsed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """For click, which shows the text of no ValueError."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as exc:
            raise click.BadParameter(str(exc)) from exc

    return convert


MOMENT = parsed(moment)
AGE = parsed(age)


@click.group(name="outbox")
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]
def outbox(ctx: click.Context) -> None:
    """Inspect and operate the transactional outbox."""
    ctx.obj.app.loader.import_default_modules()  # sets up Django where the app belongs to a project


@outbox.command(cls=OutboxCommand)
@click.option("--top", default=10, show_default=True, help="How many failing tasks to name.")
@AS_JSON
@click.pass_context
def status(ctx: click.Context, top: int, *, as_json: bool) -> None:
    """Show waiting and failing rows, and the relays that hold rows."""
    from celery_outbox_steps import operate

    found = operate.status(ctx.obj.app, top)
    if as_json:
        click.echo(json.dumps(found, default=str))
    else:
        click.echo("\n\n".join(describe(each) for each in found))


@outbox.command(cls=OutboxCommand)
@AS_JSON
@click.pass_context
def drain(ctx: click.Context, *, as_json: bool) -> None:
    """Publish everything that is due, from this process, without a worker."""
    from celery_outbox_steps import operate

    due = sum(each["depth"] for each in operate.status(ctx.obj.app, 0))
    answer = Answer(as_json=as_json)
    result = answer.with_bar("Draining", due, lambda on: operate.drain(ctx.obj.app, on))
    done = {"published": result.published, "failed": result.retried, "dead": result.dead}
    answer.say(done, "{published} published, {failed} to be tried again, {dead} dead letters")


@outbox.command(cls=OutboxCommand)
@click.argument("ids", nargs=-1, type=int)
@TASK_NAME
@click.option("--since", type=MOMENT, metavar="TIME", help=HELP["since"])
@click.option("--until", type=MOMENT, metavar="TIME", help=HELP["until"])
@click.option("--all", "everything", is_flag=True, help=HELP["all"])
@click.option("--limit", type=click.IntRange(min=1), metavar="COUNT", help=HELP["limit"])
@DRY_RUN
@AS_JSON
@click.pass_context
def replay(
    ctx: click.Context,
    ids: tuple[int, ...],
    task_name: str | None,
    since: datetime | None,
    until: datetime | None,
    *,
    limit: int | None,
    everything: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move dead letters back into the outbox: by id, by task name, by time, or --all."""
    from celery_outbox_steps import operate
    from celery_outbox_steps.store import DeadLetters

    if not (ids or task_name or since or until or everything):
        raise click.UsageError(CHOOSE)
    which = DeadLetters(ids or None, task_name, seconds_since(until), seconds_since(since))
    answer, count = Answer(as_json=as_json), operate.count_dead_letters(ctx.obj.app, which, limit)
    if dry_run:
        answer.say({"matching": count}, "{matching} dead letters would be replayed")
        return
    done = answer.with_bar(
        "Replaying", count, lambda on: operate.replay(ctx.obj.app, which, on, limit)
    )
    answer.say({"replayed": done}, "{replayed} replayed")


@outbox.command(cls=OutboxCommand)
@click.option("--published-older-than", type=AGE, metavar="AGE", help=HELP["published_older_than"])
@click.option("--dead-older-than", type=AGE, metavar="AGE", help=HELP["dead_older_than"])
@TASK_NAME
@DRY_RUN
@AS_JSON
@click.pass_context
def purge(
    ctx: click.Context,
    published_older_than: float | None,
    dead_older_than: float | None,
    task_name: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete old published rows and old dead letters."""
    from celery_outbox_steps import operate

    plan = operate.purge_plan(ctx.obj.app, published_older_than, dead_older_than, task_name)
    if plan.is_empty:
        raise click.UsageError(NOTHING_TO_PURGE)
    answer, counts = Answer(as_json=as_json), operate.count_purgeable(ctx.obj.app, plan)
    what = "{published} published rows and {dead_letters} dead letters"
    if dry_run:
        answer.say(counts, f"{what} would be deleted")
        return
    total = sum(counts.values())
    done = answer.with_bar("Purging", total, lambda on: operate.purge(ctx.obj.app, plan, on))
    answer.say(done, f"{what} deleted")


def describe(found: dict[str, Any]) -> str:
    """A database's outbox as text for people."""
    more = "+" if found["capped"] else ""
    lines = [
        f"database {found['database']}",
        f"  waiting        {found['depth']}{more}",
        f"  in flight      {found['in_flight']}{more}",
        f"  failing        {found['failing']}{more}",
        f"  dead letters   {found['dead_letters']}{more}",
        f"  kept           {found['published']}{more}",
        f"  oldest         {found['oldest_pending_seconds']:.1f} s",
    ]
    lines += [
        f"  held by        {each['relay']}: {each['rows']} rows, lease ends in "
        f"{each['seconds_left']:.0f} s"
        for each in found["relays"]
    ]
    lines += [
        f"  failing task   {each['task_name']}: {each['rows']} rows, {each['last_error']}"
        for each in found["top_failing"]
    ]
    return "\n".join(lines)


class Answer:
    """How a command speaks: to a person, or to a machine that reads JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def with_bar(self, label: str, length: int, work: Callable[[Any], Any]) -> Any:
        """Run with a progress bar where a person waits, and without one for a machine."""
        if self._as_json:
            return work(lambda _: None)
        with click.progressbar(length=length, label=label) as bar:
            return work(bar.update)

    def say(self, fields: dict[str, int], text: str) -> None:
        click.echo(json.dumps(fields) if self._as_json else text.format(**fields))
