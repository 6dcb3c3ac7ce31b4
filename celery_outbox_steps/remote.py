"""The caller's side of remote control: what concerns the outbox itself is done in its tables.

`app.control` of an `OutboxCelery` is this class; `celery control` and `app.control.broadcast` go
through it. A pause is written to the database, so that it holds for workers that start later. A
revoke deletes calls that still wait, in the caller's transaction, and is broadcast for the others.
Both work with the broker down. The workers' side is `worker.control`.
"""

from __future__ import annotations

import getpass
import socket
from functools import partial
from typing import Any

from celery.app.control import Control
from kombu.exceptions import OperationalError
from kombu.utils.functional import maybe_list

from celery_outbox_steps import operate
from celery_outbox_steps.broker import brief_connection
from celery_outbox_steps.errors import StoreError, describe
from celery_outbox_steps.fleet import NO_REASON
from celery_outbox_steps.observe.log import log

PAUSE, RESUME, REVOKE = "outbox_pause", "outbox_resume", "revoke"


class OutboxControl(Control):  # type: ignore[misc]
    """Celery's `Control`, which pauses the whole outbox, and revokes what is still in it.

    A command for some workers only, by `destination` or `pattern`, is left to them.
    """

    def broadcast(
        self,
        command: str,
        arguments: dict[str, Any] | None = None,
        destination: Any = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        for_some = destination or options.get("pattern")
        if command == REVOKE and not for_some and hasattr(self.app, "outbox"):
            return self._revoke({"task_id": (), **(arguments or {})}, *args, **options)
        if command not in (PAUSE, RESUME) or for_some:
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

    def _revoke(self, arguments: dict[str, Any], *args: Any, **options: Any) -> Any:
        """Delete what still waits, and tell the workers about the rest."""
        given = arguments["task_id"]
        ids = list(maybe_list(given) or ())

        def tell_workers(rest: list[Any]) -> Any:
            told = {**arguments, "task_id": given if isinstance(given, str) else rest}
            return super(OutboxControl, self).broadcast(REVOKE, told, None, *args, **options)

        try:
            in_table = [each for each in ids if isinstance(each, str)]
            cancelled = self.app.outbox.cancel(in_table, partial(self._tell_in_doubt, arguments))
        except StoreError as error:
            tell_workers(ids)  # a task that a worker has can be revoked all the same
            raise (error.__cause__ or error) from None
        rest = [each for each in ids if not isinstance(each, str) or each not in cancelled]
        if not cancelled:
            return tell_workers(rest)
        replies = (tell_workers(rest) if rest else None) or []
        if not options.get("reply"):
            return None
        return [*replies, _reply(options, f"{len(cancelled)} deleted from the outbox")]

    def _tell_in_doubt(self, arguments: dict[str, Any], task_ids: list[str]) -> None:
        """Their rows are deleted. In case a message had left before, workers should drop it."""
        told = {**arguments, "task_id": task_ids}
        try:
            with brief_connection(self.app) as connection:
                super().broadcast(REVOKE, told, connection=connection)
        except Exception as error:  # noqa: BLE001  the caller's transaction is committed
            named = ", ".join(map(str, task_ids))
            log("celery_outbox_revoke_untold", named, describe(error), task_ids=task_ids)

    def _write(self, command: str, reason: str) -> None:
        self.app.loader.import_default_modules()  # in a Django project this sets up Django
        if command == PAUSE:
            operate.pause(self.app, reason or NO_REASON, caller())
        else:
            operate.resume(self.app)

    def _without_workers(self, command: str, options: dict[str, Any], what: str) -> Any:
        """The command has done its work: an error would say that it has not."""
        done = "paused" if command == PAUSE else "resumed"
        return [_reply(options, f"outbox {done}; workers {what}, and see it at their check-in")]


def _reply(options: dict[str, Any], text: str) -> dict[str, Any]:
    """An answer in the form of a worker's, and given to the callback as one."""
    reply = {"database": {"ok": text}}
    if options.get("callback") is not None:
        options["callback"](reply)
    return reply


def tell_relays(app: Any, command: str = PAUSE) -> str:
    """Have the relays at work look at the pauses in the database at once, instead of within 3 s.

    Returns why they can't be told, or nothing. To a worker, `outbox_pause` for the whole outbox is
    a reason to look, and nothing else; `outbox_resume` also resumes relays that were paused alone.
    """
    try:
        with brief_connection(app) as connection:
            Control.broadcast(app.control, command, {"whole": True}, connection=connection)
    except Exception as error:  # noqa: BLE001  what was asked for is done: it is in the database
        return describe(error)
    return ""


def caller() -> str:
    """Who pauses, for those who wonder later: user and host."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no such user in this container
        user = "?"
    return f"{user}@{socket.gethostname()}"
