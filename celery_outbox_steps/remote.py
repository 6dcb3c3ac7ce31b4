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
from kombu.exceptions import OperationalError

from celery_outbox_steps import operate
from celery_outbox_steps.errors import describe
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
        if command not in (PAUSE, RESUME) or destination or options.get("pattern"):
            return super().broadcast(command, arguments, destination, *args, **options)
        arguments = {**(arguments or {}), "whole": True}
        self._write(command, str(options.get("reason", arguments.get("reason", ""))))
        try:
            replies = super().broadcast(command, arguments, destination, *args, **options)
        except (OperationalError, OSError) as error:
            return self._without_workers(command, options, f"can't be told: {describe(error)}")
        if replies or not options.get("reply"):
            return replies
        return self._without_workers(command, options, "did not answer")

    def _write(self, command: str, reason: str) -> None:
        self.app.loader.import_default_modules()  # in a Django project this sets up Django
        if command == PAUSE:
            operate.pause(self.app, reason or NO_REASON, _caller())
        else:
            operate.resume(self.app)

    def _without_workers(self, command: str, options: dict[str, Any], what: str) -> Any:
        """The command has done its work: an error would say that it has not."""
        done = "paused" if command == PAUSE else "resumed"
        reply = {"database": {"ok": f"outbox {done}; workers {what}, and see it at their check-in"}}
        if options.get("callback") is not None:
            options["callback"](reply)
        return [reply]


def _caller() -> str:
    """Who pauses, for those who wonder later: user and host."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no such user in this container
        user = "?"
    return f"{user}@{socket.gethostname()}"
