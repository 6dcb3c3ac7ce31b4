"""`celery -A proj outbox status | scheduled | cancel | send-now | pause | resume | drain | dead |
replay | purge`.

The one implementation of every command: `django_integration.management` takes arguments, help and
code from here. Loaded by every `celery` command through the entry point `celery.commands`, so it
imports nothing heavy before one of its own commands runs. Next: `celery_outbox_steps.operate`.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_outbox_steps import arguments
from celery_outbox_steps.errors import OutboxError
from celery_outbox_steps.status_text import (
    FATES,
    counted,
    dead_text,
    paused_lines,
    scheduled_text,
    status_text,
)
from celery_outbox_steps.worker import control  # noqa: F401  `celery inspect` must know our commands

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from celery_outbox_steps.messages import BatchResult

NOT_DEAD = "No dead letter that matches has the id {}."
LEFT_PAUSED = "Paused, and left as it is: {}. `drain --destination` publishes it all the same."
LEFT_PACED = "A release rate leaves messages for their turn: relays publish them then, or a drain."
AT_ONCE = "Relays at work have been told."
SOON = "The workers can't be told ({}); their relays see it within 3 s."
MORE = "There are more than these {}: use a larger --limit."
STDOUT = "celery_outbox_steps.cli.stdout"
"""Key in click's `Context.meta` of the file that a command writes to, if not sys.stdout."""


class OutboxCommand(CeleryCommand):  # type: ignore[misc]
    """Turns an `OutboxError` into one line and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OutboxError as exc:
            raise click.ClickException(str(exc)) from exc


@click.group(name="outbox")
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]
def outbox(ctx: click.Context) -> None:
    """Inspect and operate the transactional outbox."""
    ctx.obj.app.loader.import_default_modules()  # in a Django project this sets up Django


@outbox.command(cls=OutboxCommand)
@arguments.MAX_AGE
@arguments.TOP
@arguments.WATCH
@arguments.FORMAT
@arguments.DATABASES
@arguments.JSON
@click.pass_context
def status(
    ctx: click.Context,
    max_age: float | None,
    top: int,
    *,
    watch: float | None,
    output_format: str,
    databases: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say whether messages get through, and if not, why; then the numbers and the relays."""
    output = Output(ctx, as_json=as_json or output_format == "json")
    asked = ctx.obj.app, top, max_age, databases
    is_late = _print_status(output, *asked)
    try:
        while watch:
            time.sleep(watch)
            output.print_line()
            is_late = _print_status(output, *asked)
    except KeyboardInterrupt:
        pass
    if is_late and max_age is not None:
        ctx.exit(1)


@outbox.command(cls=OutboxCommand)
@arguments.SCHEDULED_TASK
@arguments.SCHEDULED_DESTINATION
@arguments.SCHEDULED_LIMIT
@arguments.DATABASES
@arguments.JSON
@click.pass_context
def scheduled(
    ctx: click.Context,
    task_name: str | None,
    destination: str | None,
    limit: int,
    databases: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """List the calls that are not due yet: when, which task, its id."""
    from celery_outbox_steps import operate

    app, output = ctx.obj.app, Output(ctx, as_json=as_json)
    operate.require_destination(app, destination, databases)
    found, more = operate.scheduled(
        app, task_name, limit, destination=destination, databases=databases
    )
    text = json.dumps(found) if as_json else scheduled_text(found, task_name, destination)
    output.print_line(text)
    if more:
        click.echo(MORE.format(limit), err=True)


@outbox.command(cls=OutboxCommand)
@arguments.TASK_IDS
@arguments.JSON
@click.pass_context
def cancel(ctx: click.Context, task_ids: tuple[str, ...], *, as_json: bool) -> None:
    """Delete calls that still wait in the outbox, by the ids of their tasks."""
    from celery_outbox_steps import operate

    found = operate.cancel(ctx.obj.app, task_ids)
    fates = {each: "cancelled" if sure else "may_have_left" for each, sure in found.items()}
    _print_fates(ctx, fates, task_ids, as_json=as_json)


@outbox.command("send-now", cls=OutboxCommand)
@arguments.TASK_IDS
@arguments.JSON
@click.pass_context
def send_now(ctx: click.Context, task_ids: tuple[str, ...], *, as_json: bool) -> None:
    """Publish calls that still wait in the outbox now, by the ids of their tasks."""
    from celery_outbox_steps import operate

    fates = dict.fromkeys(operate.send_now(ctx.obj.app, task_ids), "due_now")
    _print_fates(ctx, fates, task_ids, as_json=as_json)


@outbox.command(cls=OutboxCommand)
@arguments.PAUSED_DESTINATION
@arguments.REASON
@arguments.DATABASES
@click.pass_context
def pause(
    ctx: click.Context, destination: str | None, reason: str | None, databases: tuple[str, ...]
) -> None:
    """Pause a destination, or without a name the whole outbox, until it is resumed."""
    from celery_outbox_steps import operate, remote
    from celery_outbox_steps.fleet import NO_REASON

    app = ctx.obj.app
    operate.pause(app, reason or NO_REASON, remote.caller(), destination or "", databases)
    what, which = _paused_part(destination, databases)
    told = _told(remote.tell_relays(app))
    Output(ctx).print_line(
        f"{what} is paused. Its messages wait in the table until: celery -A proj outbox resume"
        f"{which}\n{told}"
    )


@outbox.command(cls=OutboxCommand)
@arguments.PAUSED_DESTINATION
@arguments.DATABASES
@click.pass_context
def resume(ctx: click.Context, destination: str | None, databases: tuple[str, ...]) -> None:
    """End the pause of a destination, or without a name that of the whole outbox."""
    from celery_outbox_steps import operate, remote

    app, output = ctx.obj.app, Output(ctx)
    was_paused = operate.resume(app, destination or "", databases)
    what, _ = _paused_part(destination, databases)
    told = _told(remote.tell_relays(app, remote.PAUSE if destination else remote.RESUME))
    output.print_line(f"{what} {'is resumed' if was_paused else 'was not paused'}. {told}")
    for line in paused_lines(operate.paused_destinations(app, databases)):
        output.print_line(line)


@outbox.command(cls=OutboxCommand)
@arguments.DRAIN_DESTINATION
@arguments.DATABASES
@arguments.JSON
@click.pass_context
def drain(
    ctx: click.Context, destination: str | None, databases: tuple[str, ...], *, as_json: bool
) -> None:
    """Publish every due message from this process, without a worker."""
    from celery_outbox_steps import operate

    app, output = ctx.obj.app, Output(ctx, as_json=as_json)
    waiting = operate.count_waiting(app, destination=destination, databases=databases)
    which: dict[str, Any] = {"destination": destination, "databases": databases}
    try:
        result = output.with_progress(
            "Draining", waiting, lambda progress: operate.drain(app, progress, **which)
        )
    except operate.NotDrained as error:
        _print_drained(output, error.result)
        raise
    _print_drained(output, result)
    left = [] if destination else sorted(operate.paused_destinations(app, databases))
    if left:
        click.echo(LEFT_PAUSED.format(", ".join(left)), err=True)
    if result.paced:
        click.echo(LEFT_PACED, err=True)


@outbox.command(cls=OutboxCommand)
@arguments.TASK_NAME
@arguments.KIND
@arguments.DEAD_DESTINATION
@arguments.DEAD_LIMIT
@arguments.DATABASES
@arguments.JSON
@click.pass_context
def dead(
    ctx: click.Context,
    task_name: str | None,
    kind: str | None,
    destination: str | None,
    *,
    limit: int,
    databases: tuple[str, ...],
    as_json: bool,
) -> None:
    """List the dead letters: id, when, kind, task, its id, why. `replay` takes the first id."""
    from celery_outbox_steps import operate
    from celery_outbox_steps.store import DeadLetters

    app, output = ctx.obj.app, Output(ctx, as_json=as_json)
    operate.require_destination(app, destination, databases)
    which = DeadLetters(task_name=task_name, kind=kind, destination=destination)
    found, more = operate.dead_letters(app, which, limit, databases)
    output.print_line(json.dumps(found) if as_json else dead_text(found, task_name, destination))
    if more:
        click.echo(MORE.format(limit), err=True)


@outbox.command(cls=OutboxCommand)
@arguments.IDS
@arguments.TASK_NAME
@arguments.KIND
@arguments.DEAD_DESTINATION
@arguments.SINCE
@arguments.UNTIL
@arguments.ALL
@arguments.LIMIT
@arguments.DATABASES
@arguments.DRY_RUN
@arguments.JSON
@click.pass_context
def replay(
    ctx: click.Context,
    ids: tuple[int, ...],
    task_name: str | None,
    kind: str | None,
    destination: str | None,
    *,
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
    databases: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move dead letters back into the outbox: those with these ids or options, or --all."""
    from celery_outbox_steps import operate
    from celery_outbox_steps.store import DeadLetters

    if not (ids or task_name or kind or destination or since or until or everything):
        raise click.UsageError(arguments.CHOOSE)
    app, output = ctx.obj.app, Output(ctx, as_json=as_json)
    operate.require_destination(app, destination, databases)
    older_than, newer_than = (arguments.seconds_since(moment) for moment in (until, since))
    which = DeadLetters(tuple(ids) or None, task_name, older_than, newer_than, kind, destination)
    found = operate.count_dead_letters(app, which, limit, databases)
    missing = operate.without_dead_letter(app, which, databases)
    if dry_run:
        output.print_result(
            {"matching": found}, f"{counted(found, 'dead letter')} would be replayed"
        )
    else:
        done = output.with_progress(
            "Replaying",
            found,
            lambda progress: operate.replay(app, which, progress, limit, databases),
        )
        output.print_result({"replayed": done}, f"{counted(done, 'dead letter')} replayed")
    if missing:
        click.echo(NOT_DEAD.format(", ".join(map(str, missing))), err=True)


@outbox.command(cls=OutboxCommand)
@arguments.DEAD_IDS
@arguments.DATABASES
@arguments.JSON
@click.pass_context
def discard(
    ctx: click.Context, ids: tuple[int, ...], *, databases: tuple[str, ...], as_json: bool
) -> None:
    """Delete dead letters by their ids. What one of them held back, by its key, goes on."""
    from celery_outbox_steps import operate
    from celery_outbox_steps.store import DeadLetters

    which = DeadLetters(ids)
    missing = operate.without_dead_letter(ctx.obj.app, which, databases)
    done = operate.discard(ctx.obj.app, which, databases)
    output = Output(ctx, as_json=as_json)
    output.print_result({"discarded": done}, f"{counted(done, 'dead letter')} discarded")
    if missing:
        click.echo(NOT_DEAD.format(", ".join(map(str, missing))), err=True)


@outbox.command(cls=OutboxCommand)
@arguments.PUBLISHED_OLDER_THAN
@arguments.DEAD_OLDER_THAN
@arguments.TASK_NAME
@arguments.KIND
@arguments.DEAD_DESTINATION
@arguments.DATABASES
@arguments.DRY_RUN
@arguments.JSON
@click.pass_context
def purge(
    ctx: click.Context,
    published_older_than: float | None,
    dead_older_than: float | None,
    task_name: str | None,
    kind: str | None,
    *,
    destination: str | None,
    databases: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete published rows, dead letters and inbox entries that are older than their retention."""
    from celery_outbox_steps import operate

    app, output = ctx.obj.app, Output(ctx, as_json=as_json)
    operate.require_destination(app, destination, databases)
    ages = published_older_than, dead_older_than
    plan = operate.purge_plan(app, *ages, task_name, kind, destination=destination)
    counts, verb = operate.count_purgeable(app, plan, databases), "would be deleted"
    if not dry_run:
        total = sum(counts.values())
        counts = output.with_progress(
            "Purging", total, lambda progress: operate.purge(app, plan, progress, databases)
        )
        verb = "deleted"
    published = counted(counts["published"], "published row")
    dead_letters = counted(counts["dead_letters"], "dead letter")
    entries = counted(counts["inbox"], "inbox entry", "inbox entries")
    output.print_result(counts, f"{published}, {dead_letters} and {entries} {verb}")


class Output:
    """The output of a command: its file, and its format (text or JSON)."""

    def __init__(self, ctx: click.Context, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._file = ctx.meta.get(STDOUT)

    def print_line(self, text: str = "") -> None:
        click.echo(text, file=self._file)

    def print_result(self, fields: dict[str, int], text: str) -> None:
        self.print_line(json.dumps(fields) if self.as_json else text)

    def with_progress(self, label: str, length: int, work: Callable[[Any], Any]) -> Any:
        """Run `work` with a progress bar; without one if the output is JSON."""
        if self.as_json:
            return work(lambda _: None)
        with click.progressbar(length=length, label=label, file=self._file) as bar:
            return work(bar.update)


def _print_fates(
    ctx: click.Context, fates: dict[str, str], task_ids: tuple[str, ...], *, as_json: bool
) -> None:
    """Print what was done with each task. Status 1 if one of them did not wait any more."""
    output = Output(ctx, as_json=as_json)
    of_all = {task_id: fates.get(task_id, "not_waiting") for task_id in task_ids}
    if as_json:
        output.print_line(json.dumps(of_all))
    else:
        for task_id, fate in of_all.items():
            output.print_line(f"{task_id}: {FATES[fate]}")
    if "not_waiting" in of_all.values():
        ctx.exit(1)


def _print_drained(output: Output, result: BatchResult) -> None:
    done = {"published": result.published, "failed": result.retried, "dead": result.dead}
    expired = f", {result.expired} expired" if result.expired else ""
    output.print_result(
        {**done, "expired": result.expired},
        f"{result.published} published, {result.retried} to be tried again, "
        f"{counted(result.dead, 'dead letter')}{expired}",
    )


def _paused_part(destination: str | None, databases: tuple[str, ...]) -> tuple[str, str]:
    """What a pause is for: in words, and as arguments of the command that ends it."""
    what = f"Destination {destination}" if destination else "The outbox"
    where = f" in {', '.join(databases)}" if databases else ""
    which = [*([destination] if destination else []), *(f"--database {each}" for each in databases)]
    return f"{what}{where}", "".join(f" {each}" for each in which)


def _told(why_not: str) -> str:
    """Whether the relays know of a pause, or of its end."""
    return SOON.format(why_not) if why_not else AT_ONCE


def _print_status(
    output: Output, app: Any, top: int, max_age: float | None, databases: tuple[str, ...]
) -> bool:
    """Print the status. Returns whether a message of one of the outboxes is late."""
    from celery_outbox_steps import status

    found = status.status(app, top, max_age, databases)
    text = (
        json.dumps(found, default=str) if output.as_json else "\n\n".join(map(status_text, found))
    )
    output.print_line(text)
    return any(map(status.is_late, found))
