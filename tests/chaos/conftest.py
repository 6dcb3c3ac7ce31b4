"""Fixtures of the acceptance tests, for what is better shown with one fault at a time."""

from __future__ import annotations

from tests.acceptance.conftest import _database_access, databases, stage_with

__all__ = ["_database_access", "databases", "stage_with"]
