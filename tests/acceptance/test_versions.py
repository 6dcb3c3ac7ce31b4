"""Workers of this version and of earlier ones, side by side, in both directions."""

from __future__ import annotations

import subprocess
import tarfile
import time
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import helpers
from tests.acceptance.load import watched_load

if TYPE_CHECKING:
    from tests.acceptance.stage import Stage
    from tests.harness.workers import Worker

ROOT = Path(__file__).parents[2]
BEFORE_THE_FLEET = "390c1d0"
"""The last commit without members, slots and renewed leases."""
BEFORE_HOLDING = "50a492c"
"""The last commit that published calls with an eta at once."""
BEFORE_KEYS = "a50c0a4"
"""The last commit without keys, inbox and failed tasks."""
BEFORE_DESTINATIONS = "7acef19"
"""The last commit without destinations, order keys and rates."""
CALL = """
from tests.acceptance.project.app import app
import django; django.setup()
print(app.send_task("record", countdown=3).id)
"""


@pytest.fixture(
    params=[BEFORE_THE_FLEET, BEFORE_HOLDING, BEFORE_KEYS, BEFORE_DESTINATIONS],
    ids=["without fleet", "without hold", "without keys", "without destinations"],
)
def old_version(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The code of an earlier commit, to be put in front of this one's."""
    found = subprocess.run(
        ["git", "archive", request.param], cwd=ROOT, capture_output=True, check=False
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
    with watched_load(stage) as traffic:
        traffic.wait_for_more(50)
        new = stage.worker(pool="solo")
        new.wait_for("outbox: relaying default")
        traffic.wait_for_more(50)
        assert old.stop() == 0
        traffic.wait_for_more(50)
        old = old_worker()
        assert new.stop() == 0
        traffic.wait_for_more(50)
        assert old.complaints() == []
    assert traffic.longest_wait() < 2
    assert traffic.twice() == set()


@pytest.mark.parametrize("old_version", [BEFORE_KEYS], indirect=True)
def test_an_old_relay_publishes_calls_with_keys_and_does_not_keep_them(
    stage: Stage, old_version: Path
) -> None:
    """It leaves the key on a row that it keeps after its publish."""
    keeping = {"CELERY_OUTBOX_RETENTION": 600}
    stage.worker(pool="solo", settings=keeping, PYTHONPATH=str(old_version))
    for _ in range(2):
        stage.wait_until_ran(stage.enqueue(outbox_key="k"))
    stage.worker(pool="solo", settings=keeping)
    stage.wait_until_ran(stage.enqueue(outbox_key="k"))
    helpers.wait_for(lambda: stage.rows("due_at IS NULL") == 3)
    assert stage.rows("outbox_key IS NOT NULL") <= 1


@pytest.mark.parametrize("old_version", [BEFORE_THE_FLEET, BEFORE_HOLDING], indirect=True)
def test_an_old_relay_publishes_held_calls_and_a_new_one_the_etas_of_old_calls(
    stage: Stage, old_version: Path
) -> None:
    old = {"PYTHONPATH": str(old_version)}
    began = time.monotonic()
    worker = stage.worker(pool="solo", **old)
    stage.wait_until_ran(stage.enqueue(2, countdown=3))
    assert time.monotonic() - began >= 2.9
    assert worker.complaints() == []
    assert worker.stop() == 0
    stage.worker(pool="solo")
    began = time.monotonic()
    stage.wait_until_ran([stage.python("-c", CALL, **old).strip()])
    assert time.monotonic() - began >= 2.9
    stage.wait_until_empty()
    assert stage.twice(stage.ran()) == {}
