"""structlog: the caller's context variables, stored with the call and bound again by the relay.

A batch has the messages of many callers, so a context is bound while it is published only if all of
them share it; a log line about one message has that message's own variables.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.observe.recorder import Recorder, shared

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from celery_outbox_steps.messages import ClaimedMessage
    from celery_outbox_steps.observe.recorder import Around


class Structlog(Recorder):
    """Stores and binds the variables with these names; None means all of them."""

    library = "structlog.contextvars"

    def __init__(self, names: Iterable[str] | None = None) -> None:
        self._names = None if names is None else frozenset(names)

    def on_call(self) -> Mapping[str, str | None]:
        variables = sys.modules[self.library].get_contextvars()
        if self._names is not None:
            variables = {name: variables[name] for name in variables if name in self._names}
        return {"structlog_context": json.dumps(variables, default=repr)} if variables else {}

    def around_publishing(self, rows: Sequence[ClaimedMessage]) -> Around:
        return _bound(sys.modules[self.library], shared(row.structlog_context for row in rows))

    def around_log_line(self, row: ClaimedMessage) -> Around:
        context = row.structlog_context
        return None if context is None else _bound(sys.modules[self.library], context)


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
        found = json.loads(context) if context else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
