"""OpenTelemetry: the relay's own statements make no spans. An idle relay would be one per second.

The callers' traces travel in the headers that OpenTelemetry's own Celery instrumentation wrote.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from celery_outbox_steps.observe.recorder import Recorder

if TYPE_CHECKING:
    from celery_outbox_steps.observe.recorder import Around


class OpenTelemetry(Recorder):
    """Suppresses the instrumentations where one is loaded."""

    library = "opentelemetry.instrumentation.utils"

    def around_tick(self) -> Around:
        suppressed: Around = sys.modules[self.library].suppress_instrumentation()
        return suppressed
