"""The only task: it does nothing, so that whatever is measured is not it."""

from __future__ import annotations

from typing import Any

from celery import shared_task


@shared_task(name="benchmarks.noop")
def noop(*args: Any, **kwargs: Any) -> None:
    """Nothing."""
