"""The databases, for the rows in between."""

from __future__ import annotations

from tests.proj.fixtures import databases, postgresql, use_database

__all__ = ["databases", "postgresql", "use_database"]
