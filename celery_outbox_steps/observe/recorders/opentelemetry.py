"""OpenTelemetry: the relay's own statements create no spans.

An idle relay would create one per second. The callers' traces are in the message headers already:
OpenTelemetry's own Celery instrumentation wrote them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from celery_outbox_steps.observe.recorder import Recorder

if TYPE_CHECKING:
    from celery_outbox_steps.observe.recorder import Around


class OpenTelemetry(Recorder):
    """Suppresses OpenTelemetry's instrumentations if one is loaded."""

    library = "opentelemetry.instrumentation.utils"

    def around_tick(self) -> Around:
        suppressed: Around = sys.modules[self.library].suppress_instrumentation()
        return suppressed
