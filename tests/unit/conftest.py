"""Fast tests share a process with all others, and leave nothing behind in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import signals

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _no_receivers_are_left() -> Iterator[None]:
    """A worker of a test installs Celery's Django fixup, which closes connections around tasks."""
    both = (signals.task_prerun, signals.task_postrun)
    before = [list(each.receivers) for each in both]
    yield
    for signal, kept in zip(both, before, strict=True):
        signal.receivers[:] = kept
        signal.sender_receivers_cache.clear()
