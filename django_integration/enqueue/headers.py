"""The headers of ours that a call adds to its message, if the project has asked for them.

The lineage is added here for every call. The caller's structlog variables are in a column of the
row, and the relay adds their header; here it is added only to messages that have no row: those of
excluded tasks, of retries and of replacements. Next: `capture.py`.
"""

from __future__ import annotations

from typing import Any

from celery_outbox_steps.observe.recorders.structlog import context_header
from django_integration.ancestors import lineage_header


def with_headers(app: Any, options: dict[str, Any], *, direct: bool) -> dict[str, Any]:
    """The options of a call with our headers among its own."""
    settings = app.outbox.settings
    ours: dict[str, str] = {}
    if settings.lineage:
        ours |= lineage_header(app, options.get("task_id"))
    if direct and settings.sends_context:
        ours |= context_header(settings.recorders.caller_context().structlog_context)
    return {**options, "headers": {**(options.get("headers") or {}), **ours}} if ours else options
