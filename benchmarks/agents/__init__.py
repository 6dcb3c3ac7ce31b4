"""Small programs that run on one side (ours, the peer's) and answer a line with a line.

stdout carries answers only. `benchmarks.processes.Agent` starts them, with their side's Python.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import django


def start() -> Any:
    """Set Django up and return this side's Celery app, ready for calls."""
    django.setup()
    side = os.environ["OUTBOX_BENCH_SIDE"]
    if side == "peer":
        _log_to_stderr()
    app = import_module(f"benchmarks.project.{side}").app
    app.set_current()
    app.finalize()
    import_module("benchmarks.project.tasks")
    return app


def _log_to_stderr() -> None:
    """structlog writes to stdout by default, which is for answers."""
    import structlog

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
