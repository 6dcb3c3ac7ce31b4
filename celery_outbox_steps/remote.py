"""The caller's side of remote control: who pauses every worker pauses the outbox itself.

`app.control` of an `OutboxCelery` is this class; `celery control` and `app.control.broadcast` go
through it. A pause without a destination is written to the database, so that it holds for workers
that start later, and works with the broker down. The workers' side is `worker.control`.
"""

from __future__ import annotations

import getpass
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

from celery.app.control import Control

from celery_outbox_steps.errors import StoreError
from celery_outbox_steps.store import load_stores

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_outbox_steps.store import OperatorStore

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
            pause(self.app, reason) if command == PAUSE else resume(self.app)
        return super().broadcast(command, arguments, destination, *args, **options)


def pause(app: Any, reason: str) -> None:
    """Pause the outbox of every database of the app."""
    _for_each_store(app, lambda store: store.pause(reason, _caller()))


def resume(app: Any) -> None:
    """Resume the outbox of every database of the app."""
    _for_each_store(app, lambda store: store.resume())


def _for_each_store(app: Any, step: Callable[[OperatorStore], Any]) -> None:
    """One database that is away does not keep the others from being paused; then it is reported."""
    errors = [error for store in load_stores(app) if (error := _attempt(step, store))]
    if errors:
        raise errors[0]


def _attempt(step: Callable[[OperatorStore], Any], store: OperatorStore) -> StoreError | None:
    try:
        with closing(store):
            step(store)
    except StoreError as error:
        return error
    return None


def _caller() -> str:
    """Who pauses, for those who wonder later: user and host."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no such user in this container
        user = "?"
    return f"{user}@{socket.gethostname()}"
