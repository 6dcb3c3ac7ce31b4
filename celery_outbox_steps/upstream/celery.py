"""Celery: the class of the worker's own options, for `worker.options`.

A plain `click.Option` works too, but has no `help_group`: `celery worker --help` would list our
flags among Celery's.
"""

from __future__ import annotations

from celery.bin.base import CeleryOption

__all__ = ["CeleryOption"]
