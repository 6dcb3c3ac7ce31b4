"""The worker's flags, made from the table in `celery_outbox_steps.settings`.

`install(app)` adds them to an app's `celery worker` command, under their own heading; an
`OutboxCelery` calls it itself. click adds environment variables: `--outbox-relay` is also
`CELERY_WORKER_OUTBOX_RELAY=1`. The values arrive in `worker.startup.apply_flags`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_outbox_steps.settings import SETTINGS, Setting
from celery_outbox_steps.upstream.celery import CeleryOption

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = "Outbox Relay Options"


def install(app: Any) -> None:
    """Add the `--outbox-*` flags to the app's worker command. A second call changes nothing."""
    options = app.user_options["worker"]
    if not any(getattr(option, "help_group", None) == GROUP for option in options):
        ours = {_option(setting) for setting in SETTINGS if setting.flag}
        app.user_options["worker"] = _InOrder(options | ours)


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
        callback=_refuse_without_step if setting.name == "relay" else None,
    )


def _refuse_without_step(context: click.Context, _: Any, value: Any) -> Any:
    from celery_outbox_steps.worker.steps import OutboxRelayStep

    app = getattr(context.obj, "app", None)
    if value and app is not None and OutboxRelayStep not in app.steps["worker"]:
        raise click.UsageError(
            "--outbox-relay needs the relay's bootstep. Add to the module of your Celery app:\n\n"
            "    from celery_outbox_steps import OutboxRelayStep\n"
            "    app.steps['worker'].add(OutboxRelayStep)"
        )
    return value
