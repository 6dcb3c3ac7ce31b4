"""Workers of this version and of the one before the fleet, side by side, in both directions."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.load import watched_load

if TYPE_CHECKING:
    from tests.acceptance.stage import Stage
    from tests.harness.workers import Worker

ROOT = Path(__file__).parents[2]
BEFORE_THE_FLEET = "390c1d0"
"""The last commit without members, slots and renewed leases."""


@pytest.fixture
def old_version(tmp_path: Path) -> Path:
    """The code of that commit, to be put in front of this one's."""
    found = subprocess.run(
        ["git", "archive", BEFORE_THE_FLEET], cwd=ROOT, capture_output=True, check=False
    )
    if found.returncode:
        pytest.skip("the history of this checkout does not go back that far")
    path = tmp_path / "old"
    with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
        archive.extractall(path, filter="data")
    return path


def test_a_rolling_deploy_and_its_way_back(stage: Stage, old_version: Path) -> None:
    def old_worker() -> Worker:
        return stage.worker(pool="solo", PYTHONPATH=str(old_version))

    old = old_worker()
    assert old.lines("outbox: ") == []
    with watched_load(stage) as traffic:
        traffic.wait_for_more(50)
        new = stage.worker(pool="solo")
        assert new.lines("outbox: relaying default")
        traffic.wait_for_more(50)
        assert old.stop() == 0
        traffic.wait_for_more(50)
        old = old_worker()
        assert new.stop() == 0
        traffic.wait_for_more(50)
        assert old.complaints() == []
    assert traffic.longest_wait() < 2
    assert traffic.twice() == set()
