"""The only task does nothing, so that no measurement includes its work."""

from __future__ import annotations

from typing import Any

from celery import shared_task


@shared_task(name="benchmarks.noop")
def noop(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""
