"""What a new user gets wrong first, and what is said then."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT
from tests.docs.processes import clean_environment

if TYPE_CHECKING:
    from pathlib import Path

MIGRATE = "python manage.py migrate"


@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "celery", "-A", "shop", "outbox", "status"],
        ["-m", "celery", "-A", "shop", "outbox", "drain"],
        ["manage.py", "celery_outbox_stats"],
        ["-m", "celery", "-A", "shop", "worker", "--outbox-relay", "--pool=solo"],
    ],
    ids=" ".join,
)
def test_before_migrate_the_fix_is_named(arguments: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT / "examples" / "shop",
        env=clean_environment(PYTHONPATH=str(ROOT), SHOP_HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert MIGRATE in done.stderr
    assert "Traceback" not in done.stderr
