"""An app whose author forgot the line that adds the step."""

from __future__ import annotations

from django_integration import OutboxCelery

app = OutboxCelery("no_step", broker="memory://")
