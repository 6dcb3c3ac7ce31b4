"""The caller's side of remote control: who pauses every worker pauses the outbox itself.

`app.control` of an `OutboxCelery` is this class; `celery control` and `app.control.broadcast` go
through it. A pause without a destination is written to the database, so that it holds for workers
that start later, and works with the broker down. The workers' side is `worker.control`.
"""

from __future__ import annotations

import getpass
import socket
from typing import Any

from celery.app.control import Control

from celery_outbox_steps import operate
from celery_outbox_steps.fleet import NO_REASON

PAUSE, RESUME = "outbox_pause", "outbox_resume"


class OutboxControl(Control):  # type: ignore[misc]
    """Celery's `Control`, which pauses and resumes the whole outbox."""

    def broadcast(
        self,
        command: str,
        arguments: dict[str, Any] | None = None,
        destination: Any = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        if command in (PAUSE, RESUME) and not destination and not options.get("pattern"):
            arguments = {**(arguments or {}), "whole": True}
            reason = str(options.get("reason", arguments.get("reason", "")))
            self.app.loader.import_default_modules()  # in a Django project this sets up Django
            if command == PAUSE:
                operate.pause(self.app, reason or NO_REASON, _caller())
            else:
                operate.resume(self.app)
        return super().broadcast(command, arguments, destination, *args, **options)


def _caller() -> str:
    """Who pauses, for those who wonder later: user and host."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no such user in this container
        user = "?"
    return f"{user}@{socket.gethostname()}"
