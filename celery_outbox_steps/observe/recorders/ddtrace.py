"""Datadog's tracer: the relay's own statements are not kept as traces.

The callers' traces are in the message headers already: ddtrace's own Celery integration wrote them.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery_outbox_steps.observe.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_outbox_steps.observe.recorder import Around

TICK = "celery_outbox.tick"
"""The span that is dropped, together with its children."""
MANUAL_DROP = "manual.drop"
"""Datadog's tag for a trace that is not to be kept."""


class Ddtrace(Recorder):
    """Drops the relay's own traces if the tracer is loaded."""

    library = "ddtrace.trace"

    def around_tick(self) -> Around:
        return _dropped(sys.modules[self.library].tracer)


@contextmanager
def _dropped(tracer: Any) -> Iterator[None]:
    """ddtrace can't be told to create no spans, but it can drop a whole trace."""
    with tracer.trace(TICK) as span:
        span.set_tag(MANUAL_DROP)
        yield
