"""The worker's flags, made from the table in `celery_outbox_steps.settings`, and the step by name.

`install(app)` adds the flags to an app's `celery worker` command, under their own heading, and
`add_step(app)` adds the bootstep; an `OutboxCelery` calls both itself. click adds environment
variables: `--outbox-relay` is also `CELERY_WORKER_OUTBOX_RELAY=1`. The values arrive in
`worker.startup.apply_flags`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_outbox_steps.settings import SETTINGS, Setting
from celery_outbox_steps.upstream.celery import CeleryOption

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = "Outbox Relay Options"
STEP = "celery_outbox_steps.worker.steps:OutboxRelayStep"
"""As a path, like Celery's own steps: only a worker imports it."""
STEP_NAME = "OutboxRelay"
"""Celery takes steps with the same name for one step."""
ADD_THE_STEP = (
    "Add to the module of your Celery app:\n\n"
    "    from celery_outbox_steps import OutboxRelayStep\n"
    "    app.steps['worker'].add(OutboxRelayStep)"
)


def install(app: Any) -> None:
    """Add the `--outbox-*` flags to the app's worker command. A second call changes nothing."""
    options = app.user_options["worker"]
    if not any(getattr(option, "help_group", None) == GROUP for option in options):
        ours = {_option(setting) for setting in SETTINGS if setting.flag}
        app.user_options["worker"] = _InOrder(options | ours)


def add_step(app: Any) -> None:
    """Add the relay's bootstep. It does nothing in a worker that is not to relay."""
    app.steps["worker"].add(STEP)


def has_step(app: Any) -> bool:
    """Whether somebody has added the step, as a class or by name."""
    names = (getattr(each, "name", each) for each in app.steps["worker"])
    return any(each in (STEP, STEP_NAME) for each in names)


class _InOrder(set[Any]):
    """A sorted set: Celery keeps options in a set, and `--help` would list them in random order."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=lambda option: option.name))


def _option(setting: Setting) -> Any:
    declaration = setting.flag_name
    if setting.kind.flag_type is bool:
        declaration += f"/--no-{setting.flag_name[2:]}"
    return CeleryOption(
        [declaration],
        # None means "not given": then the setting applies, or else its default.
        default=None,
        type=setting.kind.flag_type,
        help=setting.help,
        help_group=GROUP,
        show_envvar=True,
        show_default=_shown_default(setting),
        callback=_refuse_without_step if setting.name == "relay" else None,
    )


def _shown_default(setting: Setting) -> str | bool:
    """For `--help`. Some settings say it in words."""
    if setting.default is None or "Default:" in setting.help:
        return False
    if isinstance(setting.default, bool):
        return "on" if setting.default else "off"
    return f"{setting.default:g}" if isinstance(setting.default, float) else str(setting.default)


def _refuse_without_step(context: click.Context, _: Any, value: Any) -> Any:
    app = getattr(context.obj, "app", None)
    if app is None or has_step(app):
        return value
    if value:
        raise click.UsageError(f"--outbox-relay needs the relay's bootstep. {ADD_THE_STEP}")
    if value is None and app.conf.get("outbox_relay"):
        raise click.UsageError(f"CELERY_OUTBOX_RELAY needs the relay's bootstep. {ADD_THE_STEP}")
    return value
