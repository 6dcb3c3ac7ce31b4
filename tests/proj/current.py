"""Celery's current app and its default app, for the length of a block."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from celery import Celery, _state

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def current(app: Celery, default: Celery | None = None) -> Iterator[None]:
    """As in a process whose only app is this one, unless another one is the default app."""
    before = _state._tls.current_app, _state.default_app
    app.set_current()
    (default or app).set_default()
    try:
        yield
    finally:
        _state._tls.current_app, _state.default_app = before
