"""Celery: the class of the worker's own options."""

from __future__ import annotations

from celery.bin.base import CeleryOption

__all__ = ["CeleryOption"]

# A plain click.Option works too, but has no `help_group`: in `celery worker --help` our flags would
# stand among Celery's.
