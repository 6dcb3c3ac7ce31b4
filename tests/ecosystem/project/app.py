"""The acceptance project, with tasks that call and tasks that answer."""

from __future__ import annotations

from typing import Any

from celery import chord
from django.db import transaction

from tests.acceptance.project.app import app, record, write

__all__ = ["app", "record"]


@app.task(name="note", bind=True)
def note(self: Any, name: str) -> str:
    """Leave a name in the ledger, and return it."""
    write(self.request.id, name)
    return name


@app.task(name="join", bind=True)
def join(self: Any, names: list[str]) -> str:
    joined = "+".join(names)
    write(self.request.id, joined)
    return joined


def call_chord(*names: str) -> str:
    """A chord whose tasks and counter are committed together."""
    with transaction.atomic():
        return str(chord(note.s(name) for name in names)(join.s()).id)
