"""A task of Django's own framework, run by Celery."""

from __future__ import annotations

from django.tasks import task

from tests.acceptance.project.app import app, write

__all__ = ["app"]


@task
def leave(name: str) -> None:
    write("django", name)
