"""structlog: the caller's context variables, stored with the call and bound again later.

A batch has the messages of many callers, so a context is bound while it is published only if all of
them share it; a log line about one message has that message's own variables. If the project wants
it, they also travel in a header of the message, and are bound around the running task. What a
header contains must never make a task fail.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from celery import signals

from celery_outbox_steps.messages import CONTEXT_HEADER
from celery_outbox_steps.observe.recorder import Recorder, shared
from celery_outbox_steps.settings import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from celery_outbox_steps.messages import ClaimedMessage, Message
    from celery_outbox_steps.observe.recorder import Around, Publishing

MOST_BRACKETS = 200
LONGEST_HEADER = 8_192
"""Characters. AMQP has a limit for all headers of a message, and refuses one that exceeds it."""


class Structlog(Recorder):
    """Stores and binds the variables with these names; None means all of them."""

    library = "structlog.contextvars"

    def __init__(self, names: Iterable[str] | None = None) -> None:
        self._names = None if names is None else frozenset(names)

    def on_call(self) -> Mapping[str, str | None]:
        variables = _named(sys.modules[self.library].get_contextvars(), self._names)
        return {"structlog_context": json.dumps(variables, default=repr)} if variables else {}

    def around_publishing(self, batch: Publishing) -> Around:
        context = shared(row.structlog_context for row in batch.rows)
        return _bound(sys.modules[self.library], context)

    def around_log_line(self, row: ClaimedMessage) -> Around:
        context = row.structlog_context
        return None if context is None else _bound(sys.modules[self.library], context)


class StructlogHeader(Recorder):
    """Puts the stored context into the message, even if the relay itself runs without structlog."""

    def on_opened(self, row: ClaimedMessage, message: Message) -> None:
        if message.is_task:
            message.headers.update(context_header(row.structlog_context))


def bind_in_tasks(app: Any) -> None:
    """Called when a worker of the app starts, before its pool forks. Nothing without the setting.

    Once per app, however many workers of it a process starts: two receivers would bind twice, and
    undo that in the wrong order.
    """
    if read(app.conf, "structlog_bind_in_tasks"):
        context = TaskContext(app, read(app.conf, "structlog_context_keys"))
        once = f"celery_outbox.{id(app)}"
        signals.task_prerun.connect(context.bind, weak=False, dispatch_uid=once)
        signals.task_postrun.connect(context.restore, weak=False, dispatch_uid=once)


class TaskContext:
    """Binds the variables of the message around every task of an app.

    Celery sends these two signals in the thread or greenlet of the task, the second one whatever
    became of the task.
    """

    def __init__(self, app: Any, names: Iterable[str] | None) -> None:
        import structlog.contextvars

        self._app = app
        self._names = None if names is None else frozenset(names)
        self._contextvars = structlog.contextvars
        self._tokens: dict[int, Mapping[str, Any]] = {}
        """What undoes the binding, by the identity of a request; tasks may run inside of tasks."""

    def bind(self, task: Any, **_: Any) -> None:
        """The task begins."""
        if task.app is not self._app:
            return
        request = task.request
        context = request.get(CONTEXT_HEADER)
        if isinstance(context, str) and len(context) <= LONGEST_HEADER:
            variables = _named(_variables(context), self._names)
            self._tokens[id(request)] = self._contextvars.bind_contextvars(**variables)

    def restore(self, task: Any, **_: Any) -> None:
        """The task has ended."""
        tokens = self._tokens.pop(id(task.request), None)
        if tokens is not None:
            with suppress(ValueError, RuntimeError):  # it ended in another context
                self._contextvars.reset_contextvars(**tokens)


def context_header(context: str | None) -> dict[str, str]:
    """The header for a stored context. Empty if there is none, or one that is too long."""
    return {CONTEXT_HEADER: context} if context and len(context) <= LONGEST_HEADER else {}


@contextmanager
def _bound(contextvars: Any, context: str | None) -> Iterator[None]:
    """Bind the variables while the block runs, then restore the values from before."""
    tokens = contextvars.bind_contextvars(**_variables(context))
    try:
        yield
    finally:
        contextvars.reset_contextvars(**tokens)


def _variables(context: str | None) -> dict[str, Any]:
    try:
        found = json.loads(context) if context and _is_harmless(context) else {}
        json.dumps(found, ensure_ascii=False).encode()  # half a character could not be logged
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_harmless(context: str) -> bool:
    """A NUL, or values that are nested too deep, could make a log line fail."""
    return context.count("[") + context.count("{") <= MOST_BRACKETS and "\\u0000" not in context


def _named(variables: dict[str, Any], names: frozenset[str] | None) -> dict[str, Any]:
    if names is None:
        return variables
    return {name: variables[name] for name in variables if name in names}
