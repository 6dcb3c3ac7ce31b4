"""The worker's flags, made from the table in `celery_outbox_steps.settings`.

`install(app)` adds them to an app's `celery worker` command, under a heading of their own. An
`OutboxCelery` does that by itself. Environment variables come with click: `--outbox-relay` is also
`CELERY_WORKER_OUTBOX_RELAY=1`.
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
    """Give the app's worker command the `--outbox-*` flags. Doing it twice changes nothing."""
    options = app.user_options["worker"]
    if not any(getattr(option, "help_group", None) == GROUP for option in options):
        ours = {_option(setting) for setting in SETTINGS if setting.flag}
        app.user_options["worker"] = _InOrder(options | ours)


class _InOrder(set[Any]):
    """Celery keeps options in a set, which would show them in another order in every `--help`."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=lambda option: option.name))


def _option(setting: Setting) -> Any:
    declaration = setting.flag_name
    if setting.kind.flag_type is bool:
        declaration += f"/--no-{setting.flag_name[2:]}"
    return CeleryOption(
        [declaration],
        # None is "not given": then the setting counts, and after it the default.
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
