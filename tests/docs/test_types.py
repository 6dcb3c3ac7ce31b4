"""A project's type checker knows the public names, also without a plugin."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

CODE = """
from django_integration.models import CeleryOutbox

reveal_type(CeleryOutbox.objects.pending())
reveal_type(CeleryOutbox.objects.using("orders").failing().first())
"""


def test_the_states_of_a_row_are_known_without_a_plugin(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "project.py").write_text(CODE)
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-celery.*,kombu.*]\nignore_missing_imports=1")
    command = [sys.executable, "-m", "mypy", "--cache-dir=cache", "project.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "django_integration.models.CeleryOutboxQuerySet" in done.stdout, done.stdout
    assert "django_integration.models.CeleryOutbox | None" in done.stdout
