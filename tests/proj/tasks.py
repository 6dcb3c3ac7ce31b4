"""Tasks for tests that only need some task."""

from __future__ import annotations

from typing import Any

from celery import shared_task


@shared_task
def add(x: Any, y: Any = 0) -> Any:
    return x + y


@shared_task
def echo(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]
